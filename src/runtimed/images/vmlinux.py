"""Takes the uncompressed kernel (an ELF file that QEMU starts through PVH) out of a distribution's bzImage.

It is done once at build time, because decompressing it at each boot costs seconds under emulation.
"""

from __future__ import annotations

import gzip
import lzma
import struct

from runtimed.images.errors import ImageBuildFailed
from runtimed.images.unpacking import unpack_legacy_lz4, unpack_zstd

_SECTOR = 512
_SETUP_SECTORS_AT = 0x1F1
_HEADER_MAGIC_AT = 0x202
_PAYLOAD_AT = 0x248
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
        return unpack_zstd(body, size)
    if body.startswith(b"\x02\x21\x4c\x18"):
        return unpack_legacy_lz4(body[4:], size)
    raise ImageBuildFailed(f"The kernel is packed in an unknown way ({body[:6].hex()}); choose another kernel release.")
