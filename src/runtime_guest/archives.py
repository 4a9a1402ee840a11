"""Packs a folder into a tar and unpacks one into a folder, and refuses what would reach outside. All of it blocks."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO

from runtime_guest.errors import GuestError, from_os_error
from runtime_guest.globs import Exclusions
from runtime_guest.users import Users

CHUNK_BYTES = 256 * 1024
HEADER_MAX_BYTES = 1 << 20
MEMBERS_MAX = 500_000
"""Names that are remembered for hard links."""
_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_BLOCK = 512


def pack(folder: str, exclusions: Exclusions, users: Users, *, gzip: bool) -> Iterator[bytes]:
    """The folder's contents as a tar, in pieces of some 256 KiB. Raises OSError, GuestError."""
    squeeze = zlib.compressobj(1, zlib.DEFLATED, 31) if gzip else None  # 31: one gzip member, no time in it.
    pending: list[bytes] = []
    size = 0
    for piece in _tar(folder, exclusions, users):
        data = piece if squeeze is None else squeeze.compress(piece)
        if data:
            pending.append(data)
            size += len(data)
        if size >= CHUNK_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
    if squeeze is not None:
        pending.append(squeeze.flush())
    yield b"".join(pending)


def _tar(folder: str, exclusions: Exclusions, users: Users) -> Iterator[bytes]:
    if not stat.S_ISDIR(os.stat(folder).st_mode):
        raise GuestError("not_a_directory", f"{folder}: is not a directory", path=folder)
    links: dict[tuple[int, int], str] = {}
    for parts, path in _walk(folder, (), exclusions):
        try:
            yield from _member("/".join(parts), path, links, users)
        except FileNotFoundError:  # Removed meanwhile: as if it had been a moment before.
            continue
        except OSError as failure:
            raise from_os_error(failure, path) from failure
    yield bytes(2 * _BLOCK)


def _walk(folder: str, parts: tuple[str, ...], exclusions: Exclusions) -> Iterator[tuple[tuple[str, ...], str]]:
    for name in sorted(os.listdir(folder)):
        inside, path = (*parts, name), os.path.join(folder, name)
        if exclusions.excludes(inside):
            continue
        yield inside, path
        if os.path.isdir(path) and not os.path.islink(path):
            yield from _walk(path, inside, exclusions)


def _member(name: str, path: str, links: dict[tuple[int, int], str], users: Users) -> Iterator[bytes]:
    status = os.lstat(path)
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    info.mtime = int(status.st_mtime)
    info.uname, info.gname = users.owner(status.st_uid), users.group(status.st_gid)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
        yield _header(info)
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        yield _header(info)
    elif stat.S_ISREG(status.st_mode):
        first = links.setdefault((status.st_dev, status.st_ino), name) if status.st_nlink > 1 else name
        if first != name:
            info.type, info.linkname = tarfile.LNKTYPE, first
            yield _header(info)
        else:
            yield from _file(info, path)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _file(info: tarfile.TarInfo, path: str) -> Iterator[bytes]:
    """Header and contents. A file that changes its size meanwhile is cut or filled up to what the header says."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        info.size = os.fstat(fd).st_size
        yield _header(info)
        left = info.size
        while left:
            data = os.read(fd, min(left, CHUNK_BYTES)) or bytes(min(left, CHUNK_BYTES))
            left -= len(data)
            yield data
        yield bytes(-info.size % _BLOCK)
    finally:
        os.close(fd)


class _Member(tarfile.TarInfo):
    """Headers say how long they are and could fill the agent's memory: long and endless ones are refused."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > HEADER_MAX_BYTES:
            raise GuestError("invalid_request", "the archive has a header of more than 1 MiB", field="body")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse()
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]

    def _apply_pax_info(self, headers: dict[str, str], encoding: str, errors: str) -> None:
        if any(name.startswith("GNU.sparse") for name in headers):
            raise _sparse()
        super()._apply_pax_info(headers, encoding, errors)  # type: ignore[misc]


def _sparse() -> GuestError:
    return GuestError("invalid_request", "the archive holds sparse files; pack them whole", field="body")


class Unpacking:
    """Puts the members of a tar below one folder, as the thread's user, merging with what is there."""

    def __init__(self, folder: str) -> None:
        """Makes the folder. Raises OSError."""
        os.makedirs(folder, mode=0o755, exist_ok=True)
        self._root = os.path.realpath(folder)
        self._files: set[str] = set()
        self._folders: list[tuple[str, int, float]] = []
        self._safe: set[str] = {self._root}

    def unpack(self, source: IO[bytes]) -> None:
        """Read a tar or tar.gz to its end. Raises OSError, GuestError (unsafe_archive, invalid_request)."""
        try:
            with tarfile.open(
                fileobj=source, mode="r|*", bufsize=CHUNK_BYTES, tarinfo=_Member,
                encoding="utf-8", errors="surrogateescape",
            ) as tar:  # fmt: skip
                for count, member in enumerate(tar):
                    if count >= MEMBERS_MAX:
                        raise GuestError("too_large", f"the archive has more than {MEMBERS_MAX} members", field="body")
                    self._put(tar, member)
                    tar.members = []  # type: ignore[attr-defined]  # It would keep every one of millions.
        except (tarfile.TarError, EOFError, zlib.error) as wrong:
            raise GuestError("invalid_request", f"the archive cannot be read: {wrong}", field="body") from wrong
        for path, mode, mtime in reversed(self._folders):  # At the end: a folder may be read-only.
            os.chmod(path, mode)
            os.utime(path, (mtime, mtime))

    def _put(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = _safe_name(member.name)
        if not name:
            return
        path = os.path.join(self._root, name)
        try:
            self._check_parent(os.path.dirname(path), member.name)
            if member.isdir():
                self._folder(path, member)
            elif member.isreg():
                self._file(tar, member, path)
                self._files.add(name)
            elif member.issym():
                self._symlink(member, name, path)
            elif member.islnk():
                self._hard_link(member, name, path)
            else:
                raise _unsafe(member.name, "devices and pipes are not unpacked")
        except OSError as failure:
            raise from_os_error(failure, path) from failure

    def _check_parent(self, parent: str, name: str) -> None:
        if parent in self._safe:
            return
        os.makedirs(parent, mode=0o755, exist_ok=True) if self._is_inside(parent) else None
        if not self._is_inside(parent):
            raise _unsafe(name, "lies behind a link that leads outside")
        self._safe.add(parent)

    def _is_inside(self, path: str) -> bool:
        real = os.path.realpath(path)
        return real == self._root or real.startswith(self._root.rstrip("/") + "/")

    def _folder(self, path: str, member: tarfile.TarInfo) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)
        if not self._is_inside(path):
            raise _unsafe(member.name, "is a link that leads outside")
        if not os.path.isdir(path):
            raise GuestError("not_a_directory", f"{path}: is not a directory", path=path)
        self._folders.append((path, member.mode & 0o777 | 0o700, member.mtime))

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        _clear(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as out:
            content = tar.extractfile(member)
            while content is not None and (data := content.read(CHUNK_BYTES)):
                out.write(data)
            os.fchmod(fd, member.mode & 0o777)
        os.utime(path, (member.mtime, member.mtime))

    def _symlink(self, member: tarfile.TarInfo, name: str, path: str) -> None:
        target = member.linkname
        lands = os.path.normpath(os.path.join(os.path.dirname(name), target))
        if target.startswith("/") or lands == ".." or lands.startswith("../"):
            raise _unsafe(member.name, f"is a link to {target}, outside of the folder")
        _clear(path)
        os.symlink(target, path)
        self._safe = {self._root}  # What was checked may now lie behind the link.

    def _hard_link(self, member: tarfile.TarInfo, name: str, path: str) -> None:
        first = _safe_name(member.linkname)
        if first not in self._files:
            raise _unsafe(member.name, f"is a hard link to {member.linkname}, which is no earlier file of the archive")
        self._check_parent(os.path.dirname(os.path.join(self._root, first)), member.name)
        if first != name:
            _clear(path)
            os.link(os.path.join(self._root, first), path, follow_symlinks=False)
            self._files.add(name)


def _safe_name(name: str) -> str:
    """The member's name below the folder; "" is the folder itself. Raises GuestError."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise _unsafe(name, "names a place outside of the folder")
    return "/".join(parts)


def _unsafe(name: str, why: str) -> GuestError:
    return GuestError("unsafe_archive", f"{name}: {why}; nothing outside was touched", member=name)


def _clear(path: str) -> None:
    """Make room for a file: what is replaced is not written through."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
