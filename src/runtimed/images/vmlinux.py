"""Takes the uncompressed kernel (an ELF file that QEMU starts through PVH) out of a distribution's bzImage.

It is done once at build time, because decompressing it at each boot costs seconds under emulation.
"""

from __future__ import annotations

import ctypes
import gzip
import lzma
import struct

from runtimed.images.errors import ImageBuildFailed

_SECTOR = 512
_SETUP_SECTORS_AT = 0x1F1
_HEADER_MAGIC_AT = 0x202
_PAYLOAD_AT = 0x248
_LZ4_CHUNK_BYTES = 8 << 20
"""The kernel's lz4 format (`lz4 -l`) cuts its input into chunks of this size."""
VMLINUX_MAX_BYTES = 1 << 30


def extract_vmlinux(bzimage: bytes) -> bytes:
    """Raises ImageBuildFailed if this is no kernel, or one packed in a way that we do not know."""
    if len(bzimage) < _PAYLOAD_AT + 8 or bzimage[_HEADER_MAGIC_AT : _HEADER_MAGIC_AT + 4] != b"HdrS":
        raise ImageBuildFailed("The kernel package has no x86 bzImage; choose another kernel release in the recipe.")
    start = ((bzimage[_SETUP_SECTORS_AT] or 4) + 1) * _SECTOR
    offset, length = struct.unpack_from("<II", bzimage, _PAYLOAD_AT)
    payload = bzimage[start + offset : start + offset + length]
    # The kernel's own build appends the size of the unpacked kernel, except to gzip, which ends with it anyway.
    (size,) = struct.unpack("<I", payload[-4:])
    if size > VMLINUX_MAX_BYTES:
        raise ImageBuildFailed("The kernel package claims an absurd kernel size; download it again.")
    kernel = _unpack(payload, size)
    if len(kernel) != size or kernel[:4] != b"\x7fELF":
        raise ImageBuildFailed(
            "The kernel in the package could not be unpacked to an ELF file; choose another release."
        )
    return kernel


def _unpack(payload: bytes, size: int) -> bytes:
    if payload.startswith(b"\x1f\x8b"):
        return gzip.decompress(payload)
    body = payload[:-4]
    if body.startswith(b"\xfd7zXZ\0"):
        return lzma.decompress(body)
    if body.startswith(b"\x28\xb5\x2f\xfd"):
        return _unpack_zstd(body, size)
    if body.startswith(b"\x02\x21\x4c\x18"):
        return _unpack_lz4(body[4:], size)
    raise ImageBuildFailed(f"The kernel is packed in an unknown way ({body[:6].hex()}); choose another kernel release.")


def _library(name: str) -> ctypes.CDLL:
    # Both come with apt itself on Debian and Ubuntu, so nothing has to be installed for them.
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise ImageBuildFailed(
            f"Unpacking this kernel needs {name}: apt-get install {name.split('.so')[0]}-1"
        ) from error


def _unpack_zstd(body: bytes, size: int) -> bytes:
    library = _library("libzstd.so.1")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    out = ctypes.create_string_buffer(size)
    written = library.ZSTD_decompress(out, size, body, len(body))
    return out.raw[: written if written <= size else 0]  # an error code is an enormous number


def _unpack_lz4(body: bytes, size: int) -> bytes:
    library = _library("liblz4.so.1")
    library.LZ4_decompress_safe.restype = ctypes.c_int
    library.LZ4_decompress_safe.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    out = ctypes.create_string_buffer(size)
    read = written = 0
    while read + 4 <= len(body) and written < size:
        (length,) = struct.unpack_from("<I", body, read)
        chunk = body[read + 4 : read + 4 + length]
        room = min(size - written, _LZ4_CHUNK_BYTES)
        count = library.LZ4_decompress_safe(chunk, ctypes.byref(out, written), len(chunk), room)
        if count <= 0:
            return b""
        read += 4 + length
        written += count
    return out.raw[:written]
