"""Files of a sandbox as values: what stat and list answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runtimed.core.specs import UserName


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    name: str
    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int
    """Permission bits, 0o7777."""
    modified_at_s: float
    uid: int
    gid: int
    owner: str
    group: str
    symlink_target: str | None = None


@dataclass(frozen=True, kw_only=True)
class FileHead:
    """Before the bytes of a read: how many will come."""

    size: int
    mode: int
    sha256: str | None
    """Hex, for files of up to 1 MiB."""


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How a file is written. `mode` None keeps the old file's, or 0644 for a new one."""

    user: UserName
    size: int | None = None
    """Bytes that must come; a shorter stream leaves the old file as it was."""
    mode: int | None = None
    durable: bool = False
    """Flush file and folder to the disk before answering."""
