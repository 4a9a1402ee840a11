"""Reads and changes files for the host. All of it blocks, and runs in a thread that has the asked user's rights."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import itertools
import os
import secrets
import shutil
import stat
from typing import Any

from runtime_guest.errors import GuestError
from runtime_guest.globs import Glob
from runtime_guest.users import Users

HASHED_BYTES = 1 << 20
"""Files up to this size are read whole, so that length and digest are those of one moment."""
UNSIZED_BYTES = 16 << 20
"""Files that say they are empty and are not (/proc) are read up to here."""
NAMES_MAX = 100_000
ENTRIES_MAX = 20_000
"""Names of one folder that are looked at, and entries of one listing: bounds the agent's memory."""
DEPTH_MAX = 64
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)


def path_of(value: object, field: str = "path") -> str:
    """An absolute path as the host sent it. Raises GuestError."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise GuestError("invalid_request", f"{field}: an absolute path without NUL bytes is needed", field=field)
    return value


def entry(path: str, users: Users, status: os.stat_result | None = None) -> dict[str, Any]:
    """What stat and list answer about one name; a link is described itself. Raises OSError."""
    found = os.lstat(path) if status is None else status
    mode = found.st_mode
    kind = (
        "symlink" if stat.S_ISLNK(mode)
        else "directory" if stat.S_ISDIR(mode)
        else "file" if stat.S_ISREG(mode)
        else "other"
    )  # fmt: skip
    target = None
    if kind == "symlink":
        with contextlib.suppress(OSError):
            target = os.readlink(path)
    return {
        "name": os.path.basename(path.rstrip("/")) or "/",
        "path": path,
        "type": kind,
        "size": found.st_size,
        "mode": stat.S_IMODE(mode),
        "modified_at_s": found.st_mtime,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "owner": users.owner(found.st_uid),
        "group": users.group(found.st_gid),
        "symlink_target": target,
    }


class Reading:
    """An open ordinary file: what to announce, and the bytes piece by piece."""

    def __init__(self, path: str) -> None:
        """Raises OSError, GuestError; never hangs on a pipe or a device."""
        _refuse_special(os.stat(path).st_mode, path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            found = os.fstat(self._fd)
            _refuse_special(found.st_mode, path)
            self.path = path
            self.mode = stat.S_IMODE(found.st_mode)
            self.size, self._whole = found.st_size, b""
            self.sha256: str | None = None
            if found.st_size <= HASHED_BYTES:
                self._read_whole()
        except BaseException:
            os.close(self._fd)
            raise
        self._left = self.size

    def _read_whole(self) -> None:
        whole = bytearray()
        while len(whole) <= UNSIZED_BYTES:
            data = os.read(self._fd, 256 * 1024)
            if not data:
                break
            whole += data
        self._whole = bytes(whole[:UNSIZED_BYTES])
        self.size = len(self._whole)
        if self.size <= HASHED_BYTES:
            self.sha256 = hashlib.sha256(self._whole).hexdigest()

    def next(self, most: int) -> bytes:
        """The next bytes; b"" after the last. Raises GuestError when the file became shorter meanwhile."""
        size = min(most, self._left)
        if self._whole:
            at = self.size - self._left
            data = self._whole[at : at + size]
        else:
            data = os.read(self._fd, size) if size else b""
        if size and not data:
            raise GuestError("conflict", f"{self.path}: became shorter while it was read", path=self.path)
        self._left -= len(data)
        return data

    def close(self) -> None:
        os.close(self._fd)


def _refuse_special(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise GuestError("is_a_directory", f"{path}: is a directory", path=path)
    if not stat.S_ISREG(mode):
        raise GuestError("invalid_request", f"{path}: is no ordinary file", path=path, field="path")


class Staging:
    """New content beside the file that it will replace. `commit` or `abort` ends it."""

    def __init__(self, path: str, mode: int | None) -> None:
        """Makes the parents. Raises OSError, GuestError."""
        if path.endswith("/"):
            raise GuestError("is_a_directory", f"{path}: names a directory", path=path)
        self.path = path
        self._target = os.path.realpath(path) if os.path.islink(path) else path
        self._mode = mode
        folder = os.path.dirname(self._target)
        self._old = _old_file(self._target, path)
        if self._old is None:
            _make_parents(folder)
        self._folder = folder
        self._temporary = os.path.join(folder, f".runtime-{secrets.token_hex(8)}")
        self._in_place = False
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self.fd = os.open(self._temporary, flags, 0o600)
        except PermissionError:
            if self._old is None:
                raise
            # The file is the user's but its folder is not: it can be written, and not replaced.
            self._temporary = os.path.join("/tmp", f".runtime-{secrets.token_hex(8)}")
            self.fd = os.open(self._temporary, flags, 0o600)
            self._in_place = True

    def commit(self, *, durable: bool) -> None:
        """Put the new content in the file's place, with the old file's mode (and for root its owner)."""
        mode = self._mode
        if mode is None:
            mode = 0o644 if self._old is None else stat.S_IMODE(self._old.st_mode)
        if self._in_place:
            self._overwrite()
            return
        if self._old is not None and os.fstat(self.fd).st_uid != self._old.st_uid:
            with contextlib.suppress(PermissionError):  # Only root can give files away.
                os.fchown(self.fd, self._old.st_uid, self._old.st_gid)
        os.fchmod(self.fd, mode)
        if durable:
            os.fsync(self.fd)
        os.rename(self._temporary, self._target)
        self._close()
        if durable:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _overwrite(self) -> None:
        target = os.open(self._target, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.lseek(self.fd, 0, os.SEEK_SET)
            while data := os.read(self.fd, 1 << 20):
                write_all(target, data)
            if self._mode is not None:
                os.fchmod(target, self._mode)
            os.fsync(target)
        finally:
            os.close(target)
        self.abort()

    def abort(self) -> None:
        """Leave no trace. Idempotent, also after `commit`."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._close()

    def _close(self) -> None:
        os.close(self.fd)
        self.fd = -1


def _old_file(target: str, path: str) -> os.stat_result | None:
    """The file that is there, if it may be written."""
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return None
    _refuse_special(old.st_mode, path)
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as failure:
        if failure.errno != errno.ETXTBSY:  # A running program can be replaced, only not overwritten.
            raise
    return old


def _make_parents(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    except FileExistsError as failure:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from failure


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Every byte, or OSError."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]


class Listing:
    """What a listing is about."""

    def __init__(self, path: str, depth: int, glob: str | None, hidden: bool, limit: int) -> None:
        self.path, self.hidden = path, hidden
        self.limit = max(1, min(limit, ENTRIES_MAX))
        self.glob = Glob(glob) if glob else None
        self.depth = min(DEPTH_MAX if self.glob is not None and depth <= 1 else depth, DEPTH_MAX)

    def entries(self, users: Users) -> list[dict[str, Any]]:
        """Sorted, a folder before what is in it. Raises OSError for the folder itself only."""
        found: list[dict[str, Any]] = []
        self._look(self.path, (), users, found)
        return found

    def _look(self, folder: str, parts: tuple[str, ...], users: Users, found: list[dict[str, Any]]) -> None:
        with os.scandir(folder) as scan:
            names = sorted(
                item.name for item in itertools.islice(scan, NAMES_MAX) if self.hidden or item.name[0] != "."
            )
        for name in names:
            if len(found) >= self.limit:
                return
            path = os.path.join(folder, name)
            inside = (*parts, name)
            try:
                status = os.lstat(path)
                if self.glob is None or self.glob.matches(inside):
                    found.append(entry(path, users, status))
                if stat.S_ISDIR(status.st_mode) and len(inside) < self.depth:
                    self._look(path, inside, users, found)
            except OSError:  # Gone meanwhile, or a folder that the user may not look into.
                continue


def make_folder(path: str, parents: bool) -> None:
    """Raises OSError: it exists (unless `parents`), or its parent is missing (unless `parents`)."""
    if parents and not os.path.lexists(path):
        _make_parents(path)
    elif parents and os.path.isdir(path):
        return
    else:
        os.mkdir(path, 0o755)


def remove(path: str, recursive: bool) -> bool:
    """Whether there was anything. Raises OSError, and GuestError for a mount point or what holds one."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path)
        return True
    real = os.path.realpath(path)
    for mounted in _mount_points():
        if mounted == real or mounted.startswith(real.rstrip("/") + "/"):
            raise GuestError("conflict", f"{path}: is or holds a mount point ({mounted}) and stays", path=path)
    if not recursive:
        os.rmdir(path)
        return True
    if not os.access(os.path.dirname(real), os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)  # Before its contents are gone.
    shutil.rmtree(path)
    return True


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", "rb") as file:
        fields = [line.split(b" ")[4] for line in file]
    return [name.decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape") for name in fields]


def rename(source: str, target: str, overwrite: bool) -> None:
    """Raises OSError, naming whichever of both is at fault."""
    if not os.path.lexists(source):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
    if overwrite:
        os.rename(source, target)
        return
    done = _libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
    if done != 0:
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOSYS) and not os.path.lexists(target):
            os.rename(source, target)  # A file system that cannot promise it.
        else:
            raise OSError(number, os.strerror(number), target)
