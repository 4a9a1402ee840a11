"""Writes the small archive (cpio, newc) that the kernel unpacks as its first root filesystem.

The archive is made here and not by the `cpio` tool because it must hold a device node, which only root may make on
disk.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

_TRAILER = "TRAILER!!!"


@dataclass(frozen=True, kw_only=True)
class CpioEntry:
    """One member: a directory, a file, a symbolic link (content is its target) or a character device."""

    path: str
    mode: int
    content: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(path: str, permissions: int = 0o755) -> CpioEntry:
    return CpioEntry(path=path, mode=stat.S_IFDIR | permissions)


def regular_file(path: str, content: bytes, permissions: int = 0o644) -> CpioEntry:
    return CpioEntry(path=path, mode=stat.S_IFREG | permissions, content=content)


def symlink(path: str, target: str) -> CpioEntry:
    return CpioEntry(path=path, mode=stat.S_IFLNK | 0o777, content=target.encode())


def character_device(path: str, major: int, minor: int, permissions: int = 0o600) -> CpioEntry:
    return CpioEntry(path=path, mode=stat.S_IFCHR | permissions, device=(major, minor))


def write_cpio(entries: Iterable[CpioEntry]) -> bytes:
    """The archive of these members in this order; owner root, time 0, so that equal members give equal bytes."""
    members = [*entries, CpioEntry(path=_TRAILER, mode=0)]
    return b"".join(_member(number, entry) for number, entry in enumerate(members, start=1))


def _member(inode: int, entry: CpioEntry) -> bytes:
    name = entry.path.encode() + b"\0"
    fields = (
        inode,
        entry.mode,
        0,  # uid
        0,  # gid
        1,  # links
        0,  # mtime
        len(entry.content),
        0,  # device of the archive's own filesystem, major and minor
        0,
        *entry.device,
        len(name),
        0,  # checksum: unused in this variant
    )
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name) + _padded(entry.content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
