"""What a machine is started from, as files on the host: made by the images room, used by the node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """Everything that one image needs to boot. All files are read-only and shared by every machine."""

    image_id: str
    """Content address of the root filesystem."""
    name: str
    release: str
    rootfs: Path
    """Raw ext4."""
    rootfs_bytes: int
    kernel_id: str
    kernel: Path
    """Uncompressed vmlinux with a PVH entry."""
    initrd: Path
    agent_id: str
    agent_disk: Path
    """The agent and its private interpreter, a file system of their own."""


@dataclass(frozen=True, kw_only=True)
class QemuInstall:
    """A QEMU of 8.2 or later."""

    version: tuple[int, int, int]
    root: Path | None
    """A private tree to be the jail's root; None means that the host's own /usr holds it."""
    argv: tuple[str, ...]
    """How to start qemu-system-x86_64 outside a jail."""
    img_argv: tuple[str, ...]
    """How to start qemu-img outside a jail."""
    jail_argv: tuple[str, ...]
    """How to start qemu-system-x86_64 where `root` (or the host's /usr) is the jail's tree."""
