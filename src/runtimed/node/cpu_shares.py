"""Gives a machine the weight of the CPU that was guaranteed to it, by whatever this host lets the service do.

Where the service's own cgroup (version 2) may share out the processor, a machine with a floor gets a group of its own
with a weight; elsewhere its threads get a better nice value, which needs the right to do so (root has it). Both say who
goes first while the host is busy and take nothing from anybody while it is not. Neither is a promise to the
microsecond: that no more is guaranteed than there is, is checked before a machine starts (control.room).
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

How = Literal["cgroup", "nice", "nothing"]

WEIGHT_PER_CORE = 1000
"""cgroup's default weight is 100: a guaranteed core outweighs ten machines that asked for nothing."""
NICE_MOST = 15
"""For 16 guaranteed vCPUs; each step is about a quarter more than the one before."""
_GROUP = "runtime-floor-"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HostPaths:
    """Where the kernel shows these things; tests have others."""

    cgroups: Path = Path("/sys/fs/cgroup")
    proc: Path = Path("/proc")


def guarantee(pid: int, floor_millis: int, *, paths: HostPaths | None = None) -> How:
    """Let a machine's process and its children go before others by their floor. Idempotent; never raises.

    Answers by what means; `nothing` where the host allows none, or no floor was asked for.
    """
    if floor_millis <= 0:
        return "nothing"
    paths = paths or HostPaths()
    pids = [pid, *_descendants(paths.proc, pid)]
    try:
        _into_group(paths, pids, floor_millis)
        return "cgroup"
    except OSError as refused:
        _log.debug("no cgroup for pid %d: %s", pid, refused)
    try:
        for one in pids:
            _renice(paths.proc, one, floor_millis)
        return "nice"
    except OSError as refused:
        _log.warning("this host lets no machine go before others (%s): a floor is admission and price only", refused)
        return "nothing"


def _into_group(paths: HostPaths, pids: list[int], floor_millis: int) -> None:
    """Raises OSError where the service may not divide its own group."""
    own = _divided(paths)
    shared = own / "cgroup.subtree_control"
    if "cpu" not in shared.read_text().split():
        shared.write_text("+cpu")
    for left in own.glob(f"{_GROUP}*"):
        with contextlib.suppress(OSError):  # one that is still used cannot be removed
            left.rmdir()
    group = own / f"{_GROUP}{pids[0]}"
    group.mkdir(exist_ok=True)
    (group / "cpu.weight").write_text(str(max(1, min(10_000, floor_millis * WEIGHT_PER_CORE // 1000))))
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))


def _divided(paths: HostPaths) -> Path:
    """The group to divide: our own, or that of our unit where systemd has put us into a subgroup of it.

    A group with processes in it cannot be divided, so that a unit needs `Delegate=yes` and `DelegateSubgroup=`.
    """
    own = paths.cgroups / _own_group(paths.proc).lstrip("/")
    return own.parent if own.parent.name.endswith(".service") else own


def _own_group(proc: Path) -> str:
    for line in (proc / "self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:]
    raise FileNotFoundError("this host has no cgroup version 2")


def _renice(proc: Path, pid: int, floor_millis: int) -> None:
    nice = -max(1, min(NICE_MOST, floor_millis // 1000))
    for thread in (proc / str(pid) / "task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
    # Where sessions share the processor among each other, the value of the session is what counts between them.
    with contextlib.suppress(OSError):
        (proc / str(pid) / "autogroup").write_text(str(nice))


def _descendants(proc: Path, pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in (proc / str(pid) / "task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(proc, child)]
    return found
