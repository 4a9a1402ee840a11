"""A driver without a virtual machine: the real agent in a bubblewrap jail on the host, for fast tests and faults.

It isolates nothing that a tenant could be trusted with and is never chosen by configuration that does not name it.
What a machine keeps over save and restore is its /workspace; processes and everything else start anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from dataclasses import asdict
from pathlib import Path

from runtimed.core.errors import HostUnavailable
from runtimed.core.run import run
from runtimed.core.wait import wait_for
from runtimed.node.vmm.base import AGENT_SOCKET, MachinePlan, Template
from runtimed.node.vmm.jail import HOST_TREE
from runtimed.node.vmm.processes import ProcessMark, end, mark, same

GUEST_SOURCE = Path(__file__).resolve().parents[3] / "runtime_guest"
SANDBOX_UID = 1000
ENDED_WITHIN_S = 10.0
COPIED_WITHIN_S = 60.0
CONSOLE_BYTES = 64 * 1024
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
_START = "import runpy, sys; sys.path.insert(0, '/run/runtime'); runpy.run_module('runtime_guest', run_name='__main__')"


class FakeDriver:
    """Implements VmmDriver. Everything of a machine is in its folder; `root` holds the folders."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, asyncio.subprocess.Process] = {}

    async def boot(self, plan: MachinePlan) -> None:
        if self._mark_of(plan.machine_id) is None:
            await self._start(plan, None)

    async def restore(self, plan: MachinePlan, template: Template) -> None:
        if self._mark_of(plan.machine_id) is not None:
            return
        if not (template.directory / "workspace").is_dir():
            raise HostUnavailable(f"the template {template.key} is not there", hint="Build it again.")
        await self._start(plan, template.directory / "workspace")

    async def save(self, plan: MachinePlan, into: Path) -> None:
        await self._end(plan.machine_id)
        into.mkdir(parents=True, exist_ok=True)
        await _copy(plan.directory / "workspace", into / "workspace")
        await asyncio.to_thread(shutil.rmtree, plan.directory)

    async def kill(self, machine_id: str) -> None:
        await self._end(machine_id)
        folder = self._root / machine_id
        if folder.exists():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def list(self) -> frozenset[str]:
        return frozenset(folder.name for folder in self._root.iterdir() if self._mark_of(folder.name) is not None)

    async def wait_exit(self, machine_id: str) -> str:
        seen = self._mark_of(machine_id)
        if seen is not None:
            await _exited(seen.pid)
        child = self._children.get(machine_id)
        return f"the agent's jail ended with {await child.wait()}" if child is not None else "the agent's jail ended"

    async def console(self, machine_id: str) -> bytes:
        path = self._root / machine_id / "console"
        return path.read_bytes()[-CONSOLE_BYTES:] if path.exists() else b""

    def vmm_pid(self, machine_id: str) -> int | None:
        seen = self._mark_of(machine_id)
        return None if seen is None else seen.pid

    async def _start(self, plan: MachinePlan, workspace: Path | None) -> None:
        try:
            plan.own.mkdir(parents=True)
            if workspace is None:
                _make_workspace(plan.directory / "workspace")
            else:
                await _copy(workspace, plan.directory / "workspace")
            _make_etc(plan.directory / "etc")
            await self._spawn(plan)
        except OSError as failure:
            await self.kill(plan.machine_id)
            raise HostUnavailable(f"the fake machine did not start: {failure}", hint="Install bubblewrap.") from failure
        except BaseException:
            await self.kill(plan.machine_id)
            raise

    async def _spawn(self, plan: MachinePlan) -> None:
        console = os.open(plan.directory / "console", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        info_read, info_write = os.pipe2(os.O_CLOEXEC)
        try:
            with _listener(plan.own) as server:
                child = await asyncio.create_subprocess_exec(
                    *_jail(plan, server.fileno(), info_write),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    pass_fds=(server.fileno(), info_write),
                )
            self._children[plan.machine_id] = child
        except BaseException:
            os.close(info_read)
            raise
        finally:
            os.close(console)
            os.close(info_write)
        reading = asyncio.ensure_future(asyncio.to_thread(_inside_pid, info_read))  # noqa: TID251 - awaited here
        try:
            inside = await asyncio.shield(reading)
        except asyncio.CancelledError:
            _end_inside(await reading)
            raise
        seen = None if inside is None else mark(inside)
        if seen is None:
            raise HostUnavailable("the fake machine ended at once", hint="Its folder's console file says why.")
        (plan.directory / "process.json").write_text(json.dumps(asdict(seen)))

    async def _end(self, machine_id: str) -> None:
        seen = self._mark_of(machine_id)
        if seen is not None:  # PID 1 inside: everything else in there dies with it, and then bwrap's own process ends.
            end(seen)

            async def gone() -> bool | None:
                return None if same(seen) else True

            await wait_for("the end of the agent's jail", gone, within_s=ENDED_WITHIN_S, every_s=0.01)
        child = self._children.pop(machine_id, None)
        if child is not None:
            if seen is None and child.returncode is None:
                child.kill()
            await child.wait()

    def _mark_of(self, machine_id: str) -> ProcessMark | None:
        try:
            seen = ProcessMark(**json.loads((self._root / machine_id / "process.json").read_text()))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            return None
        return seen if same(seen) else None


def _inside_pid(info_fd: int) -> int | None:
    """The host's pid of the jail's first process, as bwrap tells it; None when bwrap failed. Blocks for that moment.

    Killing bwrap's outer process is not enough: until the inner one has asked to die with it, it would stay.
    """
    said = b""
    with open(info_fd, "rb", buffering=0) as info:
        while data := info.read(4096):
            said += data
            if said.rstrip().endswith(b"}"):
                return int(json.loads(said)["child-pid"])
    return None


def _end_inside(inside: int | None) -> None:
    seen = None if inside is None else mark(inside)
    if seen is not None:
        end(seen)


def _listener(directory: Path) -> socket.socket:
    """The channel's socket, made before the agent so that nobody finds it missing. Long paths go by their folder."""
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        server.bind(f"/proc/self/fd/{folder}/{AGENT_SOCKET}")
        server.listen(8)
        return server
    finally:
        os.close(folder)


def _jail(plan: MachinePlan, listen_fd: int, info_fd: int) -> list[str]:
    argv = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.getuid() == 0:  # Without a user namespace of its own root has every uid, and so a sandbox user to become.
        argv += [arg for name in _CAPABILITIES for arg in ("--cap-add", f"CAP_{name}")]
    else:
        argv += ["--unshare-user", "--uid", "0", "--gid", "0"]
    argv += ["--as-pid-1", "--die-with-parent", "--new-session", "--clearenv", "--hostname", "fake"]
    argv += ["--info-fd", str(info_fd)]
    argv += ["--bind", str(plan.directory / "etc"), "/etc"]
    for place in HOST_TREE:
        path = Path(place)
        if path.is_symlink() and path.is_dir():
            argv += ["--symlink", str(path.readlink()), place]
        elif path.exists():
            argv += ["--ro-bind", place, place]
    argv += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"]
    argv += ["--perms", "0700", "--dir", "/root", "--perms", "0755", "--dir", "/run", "--perms", "0755", "--dir"]
    argv += ["/run/runtime", "--ro-bind", str(GUEST_SOURCE), "/run/runtime/runtime_guest"]
    python = Path(sys.base_prefix)
    inside = python
    if not python.is_relative_to("/usr"):
        inside = Path("/run/runtime/python")
        argv += ["--ro-bind", str(python), str(inside)]
    argv += ["--bind", str(plan.directory / "workspace"), "/workspace", "--chdir", "/", "--"]
    program = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [*argv, str(inside / "bin" / program), "-I", "-B", "-c", _START, "--listen-fd", str(listen_fd)]


def _make_workspace(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    if os.getuid() == 0:
        os.chown(folder, SANDBOX_UID, SANDBOX_UID)


def _make_etc(folder: Path) -> None:
    folder.mkdir()
    users = [f"runtime:x:{SANDBOX_UID}:{SANDBOX_UID}::/workspace:/bin/bash\n"] if os.getuid() == 0 else []
    (folder / "passwd").write_text("".join(["root:x:0:0:root:/root:/bin/bash\n", *users]))
    (folder / "group").write_text(f"root:x:0:\ntty:x:5:\nruntime:x:{SANDBOX_UID}:\n")
    (folder / "hosts").write_text("127.0.0.1\tlocalhost\n")
    (folder / "alternatives").mkdir()
    (folder / "ld.so.cache").touch()


async def _copy(source: Path, target: Path) -> None:
    done = await run(["cp", "-a", "--reflink=auto", str(source), str(target)], within_s=COPIED_WITHIN_S)
    if done.code != 0:
        raise HostUnavailable(f"a workspace could not be copied: {done.stderr.strip()}", hint="Is the disk full?")


async def _exited(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(handle, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
