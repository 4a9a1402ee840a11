"""Knows a process for sure: by pid, start time and program, so that a pid used again is never signalled."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

BACKGROUND_NICE = 10
"""A tenth of the processor while others want it, all of it while nobody does."""


@dataclass(frozen=True, kw_only=True)
class ProcessMark:
    """Enough to say later whether this is still the same process."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks since the host booted."""
    program: str
    """Name of the program, as the kernel shows it (15 characters)."""


def mark(pid: int) -> ProcessMark | None:
    """The mark of a live process; None when there is none or it has ended and waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    program = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return ProcessMark(pid=pid, start_ticks=int(fields[19]), program=program)


def same(seen: ProcessMark) -> bool:
    """Whether the marked process is still alive. Its program may have changed by exec, its start time cannot."""
    now = mark(seen.pid)
    return now is not None and now.start_ticks == seen.start_ticks


def end(seen: ProcessMark) -> None:
    """Kill exactly the marked process, or nothing. Idempotent."""
    try:
        handle = os.pidfd_open(seen.pid)
    except ProcessLookupError:
        return
    try:
        # Between the two lines the pid cannot change hands: the handle names one process for good.
        if same(seen):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def started_for(own: Path) -> list[ProcessMark]:
    """A machine's processes by its own folder, innermost first: for one whose service died before it wrote their marks.

    The jail names the folder as an argument and QEMU is its child; without a jail QEMU stands in the folder.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            jailed = os.fsencode(own) in (process / "cmdline").read_bytes().split(b"\0")
            if jailed or os.readlink(process / "cwd") == str(own):
                children = (process / "task" / process.name / "children").read_text().split()
                found += [*children, process.name]
        except OSError:
            continue
    marks = [mark(int(pid)) for pid in dict.fromkeys(found)]
    return [seen for seen in marks if seen is not None]


def step_back(pid: int) -> None:
    """Let everything else have the processor first: for a process that nobody waits for."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), BACKGROUND_NICE)
