"""Locks that processes take on a file or a folder; the kernel drops one with its holder, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROBE_S = 0.2
"""Whoever asks whether a lock is held (`is_held`) holds it for a moment: far less than this."""


def take(path: Path, *, shared: bool = False) -> int | None:
    """Take the lock at once, or None if another process holds it. Close the descriptor to give it back.

    A file is made where nothing is; a folder must be there. Raises OSError.
    """
    handle = _open(path)
    if _try(handle, shared=shared):
        return handle
    os.close(handle)
    return None


@contextlib.contextmanager
def held(path: Path, *, shared: bool = False, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock, after waiting for it however long that takes; `on_wait` is called if it must be waited for."""
    handle = _open(path)
    try:
        if not _try(handle, shared=shared):
            on_wait()
            fcntl.flock(handle, _how(shared=shared))
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def held_for_life(path: Path) -> Iterator[int | None]:
    """The lock of a process that lives as long as it holds it, open for its pid; None if another one lives."""
    until = time.monotonic() + PROBE_S
    while (handle := take(path)) is None and time.monotonic() < until:
        time.sleep(PROBE_S / 20)  # it may be somebody who only asks
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def is_held(path: Path) -> bool:
    """Whether a process that lives holds the lock. False where nothing is."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try(handle, shared=True)
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _try(handle: int, *, shared: bool) -> bool:
    try:
        fcntl.flock(handle, _how(shared=shared) | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _how(*, shared: bool) -> int:
    return fcntl.LOCK_SH if shared else fcntl.LOCK_EX
