"""Files on the wire: the bodies of the file verbs, and entries in answers."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from runtimed.core.clock import iso
from runtimed.core.files import FileEntry
from runtimed.wire.strict import AbsolutePath, Mode, Shown, Strict

UPLOAD_MAX_BYTES = 1 << 40
"""A bound on what may be declared; the sandbox's disk is the real one."""

User = Literal["sandbox", "root"]


def _sha256(text: str) -> str:
    if re.fullmatch(r"[0-9a-fA-F]{64}", text) is None:
        raise ValueError("must be 64 hexadecimal digits")
    return text.lower()


Sha256 = Annotated[str, AfterValidator(_sha256)]


class MakeFolder(Strict):
    path: AbsolutePath
    parents: bool = True
    user: User | None = None


class RemovePath(Strict):
    path: AbsolutePath
    recursive: bool = False
    user: User | None = None


class RenamePath(Strict):
    source: AbsolutePath = Field(alias="from")
    to: AbsolutePath
    overwrite: bool = True
    user: User | None = None


class ChangeMode(Strict):
    path: AbsolutePath
    mode: Mode
    user: User | None = None


class BeginUpload(Strict):
    path: AbsolutePath
    size: int = Field(ge=0, le=UPLOAD_MAX_BYTES)
    sha256: Sha256 | None = None
    mode: Mode | None = None
    user: User | None = None


class BeginArchive(Strict):
    path: AbsolutePath
    gzip: bool = True
    user: User | None = None


class FileItem(Shown):
    name: str
    path: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: str
    modifiedAt: str


class FileItems(Shown):
    data: list[FileItem]


class Removed(Shown):
    removed: bool


class Upload(Shown):
    uploadId: str
    chunkBytes: int


def entry_body(entry: FileEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "path": entry.path,
        "type": entry.type,
        "size": entry.size,
        "mode": f"{entry.mode:04o}",
        "modifiedAt": iso(entry.modified_at_s),
        "mtimeMs": int(entry.modified_at_s * 1000),
        "uid": entry.uid,
        "gid": entry.gid,
        "owner": entry.owner,
        "group": entry.group,
        "symlinkTarget": entry.symlink_target,
    }
