"""Keeps each command in a cgroup of its own and the agent in one that a fork bomb or a full memory cannot starve.

    /sys/fs/cgroup/agent            PID 1: cpu.weight 10000, memory.min
    /sys/fs/cgroup/runtime          pids.max, memory.max below the machine's memory
    /sys/fs/cgroup/runtime/c-N      one command and everything it started

Where there is no cgroup v2 (the fake driver on a developer's host), a command's processes are found through /proc.
"""

from __future__ import annotations

import os
import signal
from typing import Protocol

ROOT = "/sys/fs/cgroup"
AGENT_MIB = 40
"""Memory that is the agent's own."""
RESERVE_MIN_MIB, RESERVE_SHARE, RESERVE_MAX_MIB = 40, 8, 96
"""Memory that commands never get (a share of the machine's, within bounds): the agent, and what the kernel needs."""
PIDS_MAX, PIDS_MAX_EACH = 30_000, 20_000
"""Below the kernel's own pid_max of 32768, so that the agent can still fork under a fork bomb; and for one command, so
that another can still start beside it."""
MARK = "RUNTIME_PROCESS_ID"
"""Environment variable that marks a command's processes where there are no cgroups."""


class Group(Protocol):
    """Everything that one command started."""

    def folder_fd(self) -> int:
        """For a child to be born into the group; the caller closes it. -1 where there is no such thing."""

    def kill(self) -> None:
        """Kill all of it, whatever sessions and parents it made up. Repeatable."""

    def remove(self) -> bool:
        """Whether it is gone; False means that something in it is still dying."""

    def oom_kills(self) -> int:
        """Processes of it that the kernel killed for want of memory."""


def _write(path: str, text: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class ControlGroup:
    """One cgroup v2."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.mkdir(path, 0o755)
        _write(f"{path}/pids.max", str(PIDS_MAX_EACH))

    def folder_fd(self) -> int:
        return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def kill(self) -> None:
        _write(f"{self.path}/cgroup.kill", "1")

    def remove(self) -> bool:
        try:
            os.rmdir(self.path)
        except FileNotFoundError:
            return True
        except OSError:
            for name in _children(self.path):  # A user with sudo may have made cgroups below.
                try:
                    os.rmdir(f"{self.path}/{name}")
                except OSError:
                    continue
            return False
        return True

    def oom_kills(self) -> int:
        for line in _read(f"{self.path}/memory.events").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


def _children(path: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


_LOOKS = 2
"""Nobody is there when nobody was seen twice: one may fork while the list is read, and one in its exec has no mark."""


class ProcessTree:
    """What a command started, found by parent, session and a mark in the environment."""

    def __init__(self, process_id: str) -> None:
        self._mark = f"{MARK}={process_id}".encode()
        self._roots: set[int] = set()

    def started(self, pid: int) -> None:
        self._roots.add(pid)

    def folder_fd(self) -> int:
        return -1

    def kill(self) -> None:
        nobody = 0
        for _ in range(50):
            found = self._members()
            nobody = 0 if found else nobody + 1
            if nobody == _LOOKS:
                return
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue

    def remove(self) -> bool:
        return not any(self._members() for _ in range(_LOOKS))

    def oom_kills(self) -> int:
        return 0

    def _members(self) -> set[int]:
        parents: dict[int, int] = {}
        members: set[int] = set()
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            stat = _read(f"/proc/{name}/stat")
            fields = stat[stat.rfind(")") + 2 :].split()
            if len(fields) < 4 or fields[0] in "ZX":
                continue
            parents[int(name)] = int(fields[1])
            if int(fields[3]) in self._roots or int(name) in self._roots or self._marked(name):
                members.add(int(name))
        grew = True
        while grew:
            more = {pid for pid, parent in parents.items() if parent in members and pid not in members}
            members |= more
            grew = bool(more)
        return members

    def _marked(self, pid: str) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self._mark in file.read().split(b"\0")
        except OSError:
            return False


class Cgroups:
    """The machine's groups. `prepare` once at boot; then one `make` for each command."""

    def __init__(self, root: str = ROOT) -> None:
        self._root = root
        self._real = False
        self._number = 0

    def prepare(self) -> None:
        """Idempotent. Protects this process and bounds all commands together."""
        if not os.path.exists(f"{self._root}/cgroup.procs"):
            return
        agent, runtime = f"{self._root}/agent", f"{self._root}/runtime"
        try:
            os.makedirs(agent, exist_ok=True)
            os.makedirs(runtime, exist_ok=True)
        except OSError:
            return
        _write(f"{agent}/cgroup.procs", "0")
        for controller in ("cpu", "memory", "pids"):  # Below too: a command that takes all leaves others their share.
            _write(f"{self._root}/cgroup.subtree_control", f"+{controller}")
            _write(f"{runtime}/cgroup.subtree_control", f"+{controller}")
        _write(f"{agent}/cpu.weight", "10000")
        _write(f"{agent}/memory.min", str(AGENT_MIB << 20))
        _write(f"{runtime}/pids.max", str(PIDS_MAX))
        reserve_mib = min(max(memory_mib() // RESERVE_SHARE, RESERVE_MIN_MIB), RESERVE_MAX_MIB)
        _write(f"{runtime}/memory.max", str((memory_mib() - reserve_mib) << 20))
        self._real = os.path.exists(f"{runtime}/cgroup.kill")
        for name in _children(runtime):
            _write(f"{runtime}/{name}/cgroup.kill", "1")
            if name[2:].isdigit():  # Of an earlier life of this process.
                self._number = max(self._number, int(name[2:]))

    @property
    def real(self) -> bool:
        """Whether commands get a cgroup, and not only the search through /proc."""
        return self._real

    def hold(self) -> None:
        """Stop everything that commands have started, where it is. Idempotent."""
        if self._real:
            _write(f"{self._root}/runtime/cgroup.freeze", "1")

    def release(self) -> None:
        """Let it go on. Idempotent."""
        if self._real:
            _write(f"{self._root}/runtime/cgroup.freeze", "0")

    def members(self) -> list[int]:
        """Every process that commands have started, the held ones too."""
        if not self._real:
            return []
        folders = (folder for folder, _, _ in os.walk(f"{self._root}/runtime"))
        return [int(pid) for folder in folders for pid in _read(f"{folder}/cgroup.procs").split()]

    def make(self, process_id: str) -> Group:
        """A group for a new command. Raises OSError."""
        if not self._real:
            return ProcessTree(process_id)
        self._number += 1
        return ControlGroup(f"{self._root}/runtime/c-{self._number}")


def memory_mib() -> int:
    """The machine's memory."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return 128
