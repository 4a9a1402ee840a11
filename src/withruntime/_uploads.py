"""Turns whatever is to be uploaded into something of known size and digest that any part can be read from again.

A part that got lost on the way is sent again. A stream can be read only once, so it goes through a file on disk
first: it is never held in memory and never guessed at.
"""

import hashlib
import io
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Protocol, TypeGuard, runtime_checkable

_COPY_BYTES = 1 << 20


@runtime_checkable
class Readable(Protocol):
    """A file opened for reading, or anything like it."""

    def read(self, size: int, /) -> bytes: ...


Uploadable = bytes | Readable | Iterable[bytes]


class Source(Protocol):
    """What an upload reads from, in any order and more than once."""

    size: int
    sha256: str

    def piece(self, offset: int, length: int) -> bytes: ...

    def close(self) -> None: ...


class _MemorySource:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size = len(data)
        self.sha256 = hashlib.sha256(data).hexdigest()

    def piece(self, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])

    def close(self) -> None:
        self._data.release()


class _FileSource:
    def __init__(self, handle: IO[bytes], *, size: int, sha256: str, start: int, owned: bool) -> None:
        self.size = size
        self.sha256 = sha256
        self._handle = handle
        self._start = start
        self._owned = owned

    def piece(self, offset: int, length: int) -> bytes:
        return os.pread(self._handle.fileno(), length, self._start + offset)

    def close(self) -> None:
        if self._owned:
            self._handle.close()


def open_source(data: Uploadable) -> Source:
    """Make a source; a stream is read to its end here. Blocks, and may fill temporary disk space."""
    if isinstance(data, bytes | bytearray | memoryview):
        return _MemorySource(bytes(data))
    if isinstance(data, str):
        raise TypeError("an iterable of bytes is needed, not of text")
    if not isinstance(data, Readable):
        if not isinstance(data, Iterable):
            raise TypeError(f"data is text, bytes, an open file or an iterable of bytes, not {type(data).__name__}")
        return _spooled(data)
    if _on_disk(data):
        return _measured(data, owned=False)
    return _spooled(iter(lambda: data.read(_COPY_BYTES), b""))


def open_file(path: Path) -> Source:
    """Make a source of a local file."""
    return _measured(path.open("rb"), owned=True)


def _on_disk(handle: Readable) -> TypeGuard[IO[bytes]]:
    return isinstance(handle, io.BufferedIOBase | io.RawIOBase) and _has_place(handle)


def _has_place(handle: io.BufferedIOBase | io.RawIOBase) -> bool:
    try:
        handle.fileno()
    except OSError:
        return False
    return handle.seekable()


def _measured(handle: IO[bytes], *, owned: bool) -> Source:
    start = handle.tell()
    digest, size = hashlib.sha256(), 0
    while piece := os.pread(handle.fileno(), _COPY_BYTES, start + size):
        digest.update(piece)
        size += len(piece)
    return _FileSource(handle, size=size, sha256=digest.hexdigest(), start=start, owned=owned)


def _spooled(pieces: Iterable[bytes]) -> Source:
    spool = tempfile.TemporaryFile(prefix="withruntime-")
    try:
        for piece in pieces:
            if not isinstance(piece, bytes | bytearray | memoryview):
                raise TypeError(f"an iterable of bytes is needed, not of {type(piece).__name__}")
            spool.write(piece)
        spool.flush()
        spool.seek(0)
        return _measured(spool, owned=True)
    except BaseException:
        spool.close()
        raise
