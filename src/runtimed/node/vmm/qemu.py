"""Does what `argv` and `jail` say: starts, restores, saves and ends QEMU microVMs. Decides nothing about sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtimed.core.boot import QemuInstall
from runtimed.core.errors import HostUnavailable, NoCapacity
from runtimed.core.run import run
from runtimed.core.specs import Shape
from runtimed.node.vmm import argv as qemu_line
from runtimed.node.vmm import journal
from runtimed.node.vmm.argv import (
    DEVICE_STATE,
    DISK,
    IGNORE_SHARED,
    MEMORY,
    Emulator,
    Places,
    qemu_argv,
)
from runtimed.node.vmm.base import MachinePlan, Template
from runtimed.node.vmm.jail import Jail, jail_argv, jail_uid
from runtimed.node.vmm.processes import ProcessMark, end, mark, same
from runtimed.node.vmm.qmp import monitor

_log = logging.getLogger(__name__)

START_S = 15.0
"""A jailed QEMU process exists and has opened its sockets long before this, or it never will."""
SAVE_S = 120.0
KILL_S = 10.0
"""After SIGKILL a process leaves as soon as the kernel has freed its memory."""
DISK_KEEP_FREE_BYTES = 512 << 20
"""A start is refused when it would leave less than this on the host's disk."""


@dataclass(kw_only=True)
class _Running:
    plan: MachinePlan
    process: asyncio.subprocess.Process
    vmm: ProcessMark


@dataclass(frozen=True, kw_only=True)
class JailPolicy:
    """How machines are confined on this host."""

    qemu: QemuInstall
    jailed: bool = True
    """False only by an operator's explicit setting."""


class QemuDriver:
    """A `VmmDriver` on QEMU's microvm machine. One object per service; it owns the machines' folders below `root`."""

    def __init__(self, root: Path, emulator: Emulator, policy: JailPolicy) -> None:
        self._root = root
        self._emulator = emulator
        self._policy = policy
        self._running: dict[str, _Running] = {}
        self._owner = mark(os.getpid())
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    async def boot(self, plan: MachinePlan) -> None:
        """Start cold. Idempotent; see `VmmDriver.boot`."""

        async def prepare() -> None:
            (plan.directory / MEMORY).touch()
            os.truncate(plan.directory / MEMORY, plan.shape.memory_mib << 20)
            await self._make_disk(plan)

        await self._start(plan, prepare, template=None)

    async def restore(self, plan: MachinePlan, template: Template) -> None:
        """Start a clone. Idempotent; see `VmmDriver.restore`."""

        async def prepare() -> None:
            await asyncio.to_thread(shutil.copyfile, template.directory / _EMPTY, plan.directory / DISK)

        await self._start(plan, prepare, template=template)

    async def save(self, plan: MachinePlan, into: Path) -> None:
        """Keep memory, device state and disk in `into`; the machine is gone afterwards. See `VmmDriver.save`."""
        async with asyncio.timeout(SAVE_S), monitor(plan.directory) as qmp:
            await qmp.execute("stop")
            await qmp.execute("migrate-set-capabilities", IGNORE_SHARED)
            await qmp.execute("migrate", {"uri": f"file:{self._places(plan, None).machine}/{DEVICE_STATE}"})
            while (status := await _status(qmp.execute, "query-migrate")) != "completed":
                if status in ("failed", "cancelled"):
                    raise HostUnavailable(f"QEMU could not save the machine's state: {status}")
                await asyncio.sleep(0.005)
            await qmp.execute("quit")
        await self.wait_exit(plan.machine_id)
        into.mkdir(parents=True, exist_ok=True)
        for name in (MEMORY, DEVICE_STATE, DISK):
            os.replace(plan.directory / name, into / name)
            os.chown(into / name, os.getuid(), os.getgid())
            os.chmod(into / name, 0o444)
        await self._make_overlay(into / _EMPTY, plan.shape)
        await self.kill(plan.machine_id)

    async def kill(self, machine_id: str) -> None:
        """End the process, then remove the folder. Idempotent."""
        directory = self._root / machine_id
        running = self._running.get(machine_id)
        record = journal.read(directory)
        for seen in (running.vmm if running else None, record.vmm if record else None, record.jail if record else None):
            if seen is not None:
                end(seen)
        if running is not None:
            await running.process.wait()
            self._running.pop(machine_id, None)
        elif record is not None:
            async with asyncio.timeout(KILL_S):
                await _gone([m for m in (record.vmm, record.jail) if m is not None], every_s=0.01)
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def list(self) -> frozenset[str]:
        """Ids whose process is alive, from the records on disk and /proc."""
        alive = set()
        for directory in journal.machines(self._root):
            record = journal.read(directory)
            if record is not None and any(m is not None and same(m) for m in (record.vmm, record.jail)):
                alive.add(directory.name)
        return frozenset(alive)

    async def wait_exit(self, machine_id: str) -> str:
        """Return when the process has ended, with a sentence that says how."""
        running = self._running.get(machine_id)
        if running is None:
            record = journal.read(self._root / machine_id)
            if record is not None and record.vmm is not None:
                await _gone([record.vmm], every_s=0.25)
            return "the machine's process is gone"
        code = await running.process.wait()
        if code == 0:
            return "the guest powered off, restarted or its kernel panicked"
        return f"QEMU ended with status {code}{_last_words(running.plan.directory)}"

    async def console(self, machine_id: str) -> bytes:
        """The newest 64 KiB that the guest wrote to its console."""
        async with monitor(self._root / machine_id, within_s=START_S) as qmp:
            size = qemu_line.CONSOLE_RING_BYTES
            said = await qmp.execute("ringbuf-read", {"device": "console", "size": size, "format": "utf8"})
            return str(said).encode(errors="replace")

    def vmm_pid(self, machine_id: str) -> int | None:
        """Host pid of QEMU itself, for accounting."""
        running = self._running.get(machine_id)
        return running.vmm.pid if running else None

    async def _start(
        self, plan: MachinePlan, prepare: Callable[[], Awaitable[None]], *, template: Template | None
    ) -> None:
        if plan.machine_id in await self.list():
            return
        self._check_room()
        try:
            plan.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._record(plan, None, None)
            await prepare()
            places = self._places(plan, template)
            command = qemu_argv(self._emulator, plan.shape, places, restore=template is not None)
            if self._policy.jailed:
                await self._launch_jailed(plan, command, template)
            else:
                await self._launch_open(plan, command)
            if template is not None:
                await _load(plan, places)
        except BaseException as failure:
            await self.kill(plan.machine_id)
            if isinstance(failure, OSError):
                raise HostUnavailable(f"the machine could not be started: {failure.strerror}") from failure
            raise

    def _check_room(self) -> None:
        free = shutil.disk_usage(self._root).free
        if free < DISK_KEEP_FREE_BYTES:
            raise NoCapacity(
                f"only {free >> 20} MiB are free on the host's disk, {DISK_KEEP_FREE_BYTES >> 20} MiB must stay free",
                hint="Free disk space on the host, or move the state folder with RUNTIME_STATE_DIR.",
                retry_after_ms=5000,
            )

    async def _launch_jailed(self, plan: MachinePlan, command: Sequence[str], template: Template | None) -> None:
        read, write = os.pipe()
        try:
            line = self._jailed(plan, command, template, info_fd=write)
            with (plan.directory / "vmm.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *line,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write,),
                    start_new_session=True,
                )
        except FileNotFoundError as failure:
            os.close(read)
            raise HostUnavailable(
                f"there is no {line[0]} on this host", hint="Install it: apt-get install bubblewrap"
            ) from failure
        finally:
            os.close(write)
        jail = mark(process.pid)
        self._record(plan, jail, None)
        try:
            said = await asyncio.wait_for(asyncio.to_thread(_read_all, read), START_S)
            vmm = mark(int(json.loads(said)["child-pid"])) if said else None
        finally:
            os.close(read)
        if vmm is None:
            code = await process.wait()
            words = _last_words(plan.directory)
            raise HostUnavailable(f"the jail of the machine ended with status {code}{words}", hint=_JAIL_HINT)
        self._running[plan.machine_id] = _Running(plan=plan, process=process, vmm=vmm)
        self._record(plan, jail, vmm)

    async def _launch_open(self, plan: MachinePlan, command: Sequence[str]) -> None:
        """Without a jail: in the machine's folder, so that socket paths stay short."""
        with (plan.directory / "vmm.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=plan.directory,
                start_new_session=True,
            )
        vmm = mark(process.pid)
        if vmm is None:
            code = await process.wait()
            raise HostUnavailable(f"QEMU ended with status {code}{_last_words(plan.directory)}")
        self._running[plan.machine_id] = _Running(plan=plan, process=process, vmm=vmm)
        self._record(plan, vmm, vmm)

    def _places(self, plan: MachinePlan, template: Template | None) -> Places:
        if self._policy.jailed:
            return Places()
        image = plan.image
        return Places(
            machine=".",
            template=str(template.directory) if template else "",
            kernel=str(image.kernel),
            initrd=str(image.initrd),
            rootfs=str(image.rootfs),
            agent_disk=str(image.agent_disk),
        )

    def _record(self, plan: MachinePlan, jail: ProcessMark | None, vmm: ProcessMark | None) -> None:
        record = journal.MachineRecord(machine_id=plan.machine_id, owner=self._owner, jail=jail, vmm=vmm)
        journal.write(plan.directory, record)

    def _jailed(
        self, plan: MachinePlan, command: Sequence[str], template: Template | None, *, info_fd: int
    ) -> Sequence[str]:
        uid = jail_uid(plan.machine_id) if os.getuid() == 0 else None
        if uid is not None:
            for entry in (plan.directory, *plan.directory.iterdir()):
                os.chown(entry, uid, uid)
        places, image = Places(), plan.image
        shown = [
            (image.kernel, places.kernel),
            (image.initrd, places.initrd),
            (image.rootfs, places.rootfs),
            (image.agent_disk, places.agent_disk),
        ]
        if template is not None:
            shown += [(template.directory / n, f"{places.template}/{n}") for n in (MEMORY, DEVICE_STATE, DISK)]
        jail = Jail(
            root=self._policy.qemu.root,
            read_only=shown,
            writable=[(plan.directory, places.machine)],
            devices=self._devices(plan, uid),
            uid=uid,
        )
        return jail_argv(jail, info_fd=info_fd, command=command)

    def _devices(self, plan: MachinePlan, uid: int | None) -> Sequence[tuple[Path, str]]:
        if self._emulator.accel != "kvm":
            return []
        if uid is None:
            return [(_KVM, str(_KVM))]
        # The machine's own user may not open the host's node, whose owner and group are root's: it gets one of its own.
        node = plan.directory / "kvm"
        os.mknod(node, 0o600 | stat.S_IFCHR, _KVM.stat().st_rdev)
        os.chown(node, uid, uid)
        return [(node, str(_KVM))]

    async def _make_disk(self, plan: MachinePlan) -> None:
        await self._make_overlay(plan.directory / DISK, plan.shape)

    async def _make_overlay(self, path: Path, shape: Shape) -> None:
        """An empty qcow2 of the guest's size; what lies under it is said on QEMU's command line."""
        made = await run(
            [*self._policy.qemu.img_argv, "create", "-q", "-f", "qcow2", str(path), f"{shape.disk_mib}M"], within_s=30
        )
        if made.code != 0:
            raise HostUnavailable(f"qemu-img could not make a disk: {made.stderr.strip()}")


_EMPTY = "empty.qcow2"
"""In a template: an overlay without content, copied for each clone (a fork of qemu-img costs more than the restore)."""

_KVM = Path("/dev/kvm")

_JAIL_HINT = (
    "`runtime doctor` says what this host refuses. Where AppArmor restricts user namespaces (Ubuntu 24.04), allow them "
    "for bwrap, or run the service as root."
)


def _read_all(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 4096):
        chunks.append(chunk)
        if b"}" in chunk:  # the jail keeps its end open for as long as the machine lives
            break
    return b"".join(chunks)


def _last_words(directory: Path) -> str:
    with contextlib.suppress(OSError):
        lines = (directory / "vmm.log").read_text(errors="replace").strip().splitlines()
        if lines:
            return f": {lines[-1]}"
    return ""


async def _gone(marks: Sequence[ProcessMark], *, every_s: float) -> None:
    """Wait until processes that are not our children have left."""
    while any(same(seen) for seen in marks):  # noqa: ASYNC110 - there is no event for somebody else's child
        await asyncio.sleep(every_s)


async def _load(plan: MachinePlan, places: Places) -> None:
    """Load the template's device state and let the guest run on."""
    try:
        async with monitor(plan.directory, within_s=START_S) as qmp:
            await qmp.execute("migrate-set-capabilities", IGNORE_SHARED)
            await qmp.execute("migrate-incoming", {"uri": f"file:{places.template}/{DEVICE_STATE}"})
            while await _status(qmp.execute, "query-status") == "inmigrate":  # noqa: ASYNC110 - no event says it
                await asyncio.sleep(0.001)
            await qmp.execute("cont")  # the state says stopped, because the template was saved so
    except (OSError, TimeoutError) as failure:
        raise HostUnavailable(f"QEMU did not load the template{_last_words(plan.directory)}") from failure


async def _status(execute: Callable[..., Awaitable[object]], command: str) -> str:
    answer = await execute(command)
    return str(answer.get("status")) if isinstance(answer, dict) else ""
