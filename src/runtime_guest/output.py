"""Keeps what a command writes: the newest MiB by byte position, and for a buffered answer head and tail of each stream.

Positions count bytes of stdout and stderr together. Which byte came from which stream is kept as the positions where
the stream changes, so that a program that alternates byte by byte costs 8 bytes a byte and no more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

KEPT_BYTES = 1 << 20
STDOUT, STDERR = 0, 1


class Piece(NamedTuple):
    stream: int
    offset: int
    data: bytes


class Ring:
    """The newest bytes of both streams, readable from any position that is still kept."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self.kept_bytes = kept_bytes
        """May be lowered while it is in use; then it holds at the next write."""
        self._bytes = bytearray()
        self._runs = array("Q")  # Each: position of the run's first byte, shifted left by one, plus its stream.
        self.first = 0
        """Position of the oldest byte kept."""
        self.end = 0
        """Position after the newest byte."""

    def append(self, stream: int, data: bytes) -> None:
        if not data:
            return
        if not self._runs or self._runs[-1] & 1 != stream:
            self._runs.append(self.end << 1 | stream)
        self._bytes += data
        self.end += len(data)
        drop = len(self._bytes) - self.kept_bytes
        if drop > 0:
            del self._bytes[:drop]
            self.first += drop
            self._trim_runs()

    def read(self, cursor: int, most: int) -> Piece | None:
        """Up to `most` bytes of one stream from `cursor` on, or from the oldest kept; None at the end."""
        at = max(cursor, self.first)
        if at >= self.end:
            return None
        index = bisect_right(self._runs, at << 1 | 1) - 1
        stop = self._runs[index + 1] >> 1 if index + 1 < len(self._runs) else self.end
        stop = min(stop, at + most)
        data = bytes(memoryview(self._bytes)[at - self.first : stop - self.first])
        return Piece(self._runs[index] & 1, at, data)

    def _trim_runs(self) -> None:
        stale = bisect_right(self._runs, self.first << 1 | 1) - 1
        if stale > 64 and stale * 2 > len(self._runs):  # Moving the rest costs; not for every byte dropped.
            del self._runs[:stale]


class HeadTail:
    """The first and the last bytes of one stream, and how many there were."""

    def __init__(self, keep_bytes: int) -> None:
        self._head_most = keep_bytes // 2
        self._tail_most = keep_bytes - self._head_most
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def append(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_most - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data and self._tail_most:
            self._tail += data[-self._tail_most :] if len(data) > self._tail_most else data
            if len(self._tail) > 2 * self._tail_most:
                del self._tail[: -self._tail_most]

    def kept(self) -> bytes:
        """Head and tail put together; shorter than `total` when the middle is missing."""
        return bytes(self._head) + bytes(self._tail[-self._tail_most :] if self._tail_most else b"")
