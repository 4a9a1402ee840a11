"""Finds, saves and puts back the memory that a clone owns: the pages it has written since it left its template.

A clone maps its template's memory privately, so a page of its own is one that is there and is no page of the file.
Saving only these makes pause, fork and snapshot cost what the sandbox used and not what it was given.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096
PIECE_BYTES = 1 << 20
"""Written at a time: it stays in the processor's cache between its two copies."""

_PAGEMAP_SCAN = 0xC0606610
"""_IOWR('f', 16, struct pm_scan_arg): the kernel walks the pages itself (Linux 6.7 and later)."""
_IS_FILE, _IS_PRESENT, _IS_SWAPPED = 1 << 2, 1 << 3, 1 << 4
_REGIONS = 4096


class _ScanArg(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "size",
            "flags",
            "start",
            "end",
            "walk_end",
            "vec",
            "vec_len",
            "max_pages",
            "category_inverted",
            "category_mask",
            "category_anyof_mask",
            "return_mask",
        )
    ]


class _Region(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("categories", ctypes.c_uint64)]


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.process_vm_readv, _libc.process_vm_writev):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = [
        ctypes.c_int, ctypes.POINTER(_IoVec), ctypes.c_ulong, ctypes.POINTER(_IoVec), ctypes.c_ulong, ctypes.c_ulong,
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """Neighbouring bytes of guest memory, counted from its start in the file that backs it."""

    offset: int
    length: int


@dataclass(frozen=True, kw_only=True)
class Span:
    """One mapping of the memory file in the machine's process."""

    address: int
    length: int
    offset: int


def spans(pid: int, inode: int) -> list[Span]:
    """Where the memory file is mapped. By inode, because a jailed process shows another path."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split()
        if int(fields[4]) == inode and len(fields) > 5:
            low, high = (int(part, 16) for part in fields[0].split("-"))
            found.append(Span(address=low, length=high - low, offset=int(fields[2], 16)))
    return found


def owned(pid: int, memory: Iterable[Span]) -> list[Run]:
    """What the process has of its own in these mappings, in order of its place in guest memory."""
    handle = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
    try:
        runs = []
        for span in memory:
            for low, high in _scan(handle, span):
                runs.append(Run(offset=low - span.address + span.offset, length=high - low))
        return joined(runs)
    finally:
        os.close(handle)


def joined(runs: Iterable[Run]) -> list[Run]:
    """In order, each byte once. The kernel's scan may name a range twice (seen on 6.18: twice the memory was saved)."""
    found: list[Run] = []
    for run in sorted(runs, key=lambda run: run.offset):
        last = found[-1] if found else None
        if last is None or run.offset > last.offset + last.length:
            found.append(run)
        elif run.offset + run.length > last.offset + last.length:
            found[-1] = Run(offset=last.offset, length=run.offset + run.length - last.offset)
    return found


def _scan(handle: int, span: Span) -> Iterator[tuple[int, int]]:
    try:
        yield from _scan_in_kernel(handle, span)
    except OSError as failure:
        if failure.errno not in (errno.ENOTTY, errno.EINVAL):
            raise
        yield from _scan_here(handle, span)


def _scan_in_kernel(handle: int, span: Span) -> Iterator[tuple[int, int]]:
    regions = (_Region * _REGIONS)()
    at, end = span.address, span.address + span.length
    while at < end:
        arg = _ScanArg(
            size=ctypes.sizeof(_ScanArg),
            start=at,
            end=end,
            vec=ctypes.addressof(regions),
            vec_len=_REGIONS,
            category_inverted=_IS_FILE,
            category_mask=_IS_FILE,
            category_anyof_mask=_IS_PRESENT | _IS_SWAPPED,
        )
        count = fcntl.ioctl(handle, _PAGEMAP_SCAN, arg)
        yield from ((regions[i].start, regions[i].end) for i in range(count))
        at = arg.walk_end


def _scan_here(handle: int, span: Span) -> Iterator[tuple[int, int]]:
    """The same from /proc/PID/pagemap, for older kernels: bit 63 present, 62 swapped, 61 a page of the file."""
    block_pages = 512
    nothing = bytes(block_pages * 8)
    start: int | None = None
    pages = span.length // PAGE
    for first in range(0, pages, block_pages):
        raw = os.pread(handle, min(block_pages, pages - first) * 8, (span.address // PAGE + first) * 8)
        if raw == nothing[: len(raw)]:
            if start is not None:
                yield start, span.address + first * PAGE
                start = None
            continue
        for index, entry in enumerate(array.array("Q", raw), first):
            mine = (entry >> 62) & 3 and not (entry >> 61) & 1
            if mine and start is None:
                start = span.address + index * PAGE
            elif not mine and start is not None:
                yield start, span.address + index * PAGE
                start = None
    if start is not None:
        yield start, span.address + span.length


def copy_to_file(pid: int, memory: Iterable[Span], runs: Iterable[Run], path: Path) -> int:
    """Write the runs to a new file, in their order; the machine must be frozen. Answers the bytes written."""
    places, written = list(memory), 0
    buffer = (ctypes.c_char * PIECE_BYTES)()
    with open(path, "xb", buffering=0) as target, memoryview(buffer) as view:
        os.fchmod(target.fileno(), 0o600)
        for address, length in _addresses(places, runs):
            while length:
                size = min(length, PIECE_BYTES)
                _move(_libc.process_vm_readv, pid, address, ctypes.addressof(buffer), size)
                _write_all(target.fileno(), view[:size])
                written += size
                address, length = address + size, length - size
    return written


def copy_from_file(pid: int, memory: Iterable[Span], runs: Iterable[Run], path: Path) -> None:
    """Write pages saved by `copy_to_file` into another clone's memory, before its device state is loaded.

    Raises:
        EOFError: the file is shorter than its table says.
    """
    places = list(memory)
    buffer = (ctypes.c_char * PIECE_BYTES)()
    with open(path, "rb", buffering=0) as source, memoryview(buffer) as view:
        for address, length in _addresses(places, runs):
            while length:
                size = source.readinto(view[: min(length, PIECE_BYTES)])
                if not size:
                    raise EOFError("the file of saved pages is shorter than its table")
                _move(_libc.process_vm_writev, pid, address, ctypes.addressof(buffer), size)
                address, length = address + size, length - size


def _move(call: Callable[..., int], pid: int, address: int, ours: int, length: int) -> None:
    """process_vm_readv(2) or its twin: a third less work than /proc/PID/mem, which is copied page by page.

    Raises OSError.
    """
    while length:
        here, there = _IoVec(ours, length), _IoVec(address, length)
        done = call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if done <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        address, ours, length = address + done, ours + done, length - done


def _write_all(target: int, piece: memoryview) -> None:
    while len(piece):
        piece = piece[os.write(target, piece) :]


def _addresses(places: list[Span], runs: Iterable[Run]) -> Iterator[tuple[int, int]]:
    for run in runs:
        span = next((s for s in places if s.offset <= run.offset < s.offset + s.length), None)
        if span is None:
            raise LookupError("the machine has not mapped the memory that these pages belong to")
        yield span.address + run.offset - span.offset, run.length


def write_table(path: Path, runs: Iterable[Run]) -> None:
    path.write_text(json.dumps([[run.offset, run.length] for run in runs]))


def read_table(path: Path) -> list[Run]:
    return [Run(offset=offset, length=length) for offset, length in json.loads(path.read_text())]
