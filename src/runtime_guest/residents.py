"""Tells programs that were running when their machine was copied: they seed their own generators anew.

A program has no other way to know. It says that it wants to be told by handling two signals and no other real-time one,
as the default image's Python does at its start (`runtimed/images/recipes/default.toml`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

SIGNAL, MARK = 53, 61
"""Two, so that a program that uses one of them for something else is left alone."""
_FIRST_REAL_TIME = 34
_WANTED = 1 << (SIGNAL - 1) | 1 << (MARK - 1)


def tell(pids: Iterable[int]) -> int:
    """Signal those that asked for it; answers how many. One that is gone or does not handle it is left alone."""
    told = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
                if wants(file.read()):
                    os.kill(pid, SIGNAL)
                    told += 1
        except OSError:
            continue
    return told


def wants(status: str) -> bool:
    """Whether a process with this `/proc/PID/status` handles exactly these two of the real-time signals."""
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16) >> (_FIRST_REAL_TIME - 1) << (_FIRST_REAL_TIME - 1) == _WANTED
    return False
