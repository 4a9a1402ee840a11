"""Unpacks what kernels and modules are packed with and Python's library cannot read, by the C libraries of the host.

Both libraries come with apt itself on Debian and Ubuntu, so nothing has to be installed for them.
"""

from __future__ import annotations

import ctypes
import struct

from runtimed.images.errors import ImageBuildFailed

_LZ4_CHUNK_BYTES = 8 << 20
"""The kernel's lz4 format (`lz4 -l`) cuts its input into chunks of this size."""
_PACKAGES = {"libzstd.so.1": "libzstd1", "liblz4.so.1": "liblz4-1"}


def zstd_size(packed: bytes) -> int | None:
    """How large one zstd frame is when unpacked; None if it does not say, or is none."""
    library = _library("libzstd.so.1")
    library.ZSTD_getFrameContentSize.restype = ctypes.c_ulonglong
    library.ZSTD_getFrameContentSize.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    size = int(library.ZSTD_getFrameContentSize(packed, len(packed)))
    return size if size < 1 << 63 else None  # the two error codes are the two largest numbers


def unpack_zstd(packed: bytes, size: int) -> bytes:
    """At most `size` bytes; nothing if it is damaged or larger."""
    library = _library("libzstd.so.1")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    out = ctypes.create_string_buffer(size)
    written = library.ZSTD_decompress(out, size, packed, len(packed))
    return out.raw[: written if written <= size else 0]  # an error code is an enormous number


def unpack_legacy_lz4(packed: bytes, size: int) -> bytes:
    """At most `size` bytes of the chunks that follow the magic number; nothing if they are damaged."""
    library = _library("liblz4.so.1")
    library.LZ4_decompress_safe.restype = ctypes.c_int
    library.LZ4_decompress_safe.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    out = ctypes.create_string_buffer(size)
    read = written = 0
    while read + 4 <= len(packed) and written < size:
        (length,) = struct.unpack_from("<I", packed, read)
        chunk = packed[read + 4 : read + 4 + length]
        room = min(size - written, _LZ4_CHUNK_BYTES)
        count = library.LZ4_decompress_safe(chunk, ctypes.byref(out, written), len(chunk), room)
        if count <= 0:
            return b""
        read += 4 + length
        written += count
    return out.raw[:written]


def _library(name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise ImageBuildFailed(f"Unpacking the kernel needs {name}: apt-get install {_PACKAGES[name]}") from error
