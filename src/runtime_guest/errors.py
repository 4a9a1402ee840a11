"""Failures that the agent answers with a code of runtimed.core.errors, and what an errno means to a caller."""

from __future__ import annotations

import errno
from typing import Any


class GuestError(Exception):
    """`code` is one of runtimed.core.errors; the host turns it into that error."""

    def __init__(self, code: str, message: str, **details: Any) -> None:  # noqa: ANN401 - JSON
        super().__init__(message)
        self.code, self.message, self.details = code, message, details


_BY_ERRNO = {
    errno.ENOENT: ("file_not_found", "there is no such file or folder"),
    errno.EACCES: ("permission_denied", "permission denied"),
    errno.EPERM: ("permission_denied", "operation not permitted"),
    errno.EROFS: ("permission_denied", "the file system is read-only"),
    errno.EISDIR: ("is_a_directory", "is a directory"),
    errno.ENOTDIR: ("not_a_directory", "is not a directory"),
    errno.ENOTEMPTY: ("directory_not_empty", "the directory is not empty"),
    errno.EEXIST: ("already_exists", "exists already"),
    errno.ENOSPC: ("disk_full", "no space left on the disk"),
    errno.EDQUOT: ("disk_full", "the disk quota is used up"),
    errno.EFBIG: ("too_large", "the file is too large"),
    errno.EBUSY: ("conflict", "is in use, or is a mount point"),
    errno.EXDEV: ("conflict", "source and target are on different file systems"),
    errno.EINVAL: ("invalid_request", "the system refused this as invalid"),
    errno.ENAMETOOLONG: ("invalid_request", "the name is too long"),
    errno.ELOOP: ("invalid_request", "too many symbolic links"),
    errno.ENXIO: ("invalid_request", "is no ordinary file"),
    errno.ENODEV: ("invalid_request", "is no ordinary file"),
    errno.ETXTBSY: ("conflict", "is being executed"),
    errno.EMFILE: ("guest_busy", "the agent has too many files open"),
    errno.ENFILE: ("guest_busy", "the machine has too many files open"),
    errno.EAGAIN: ("guest_busy", "the machine has no room for another process now"),
    errno.ENOMEM: ("guest_busy", "the machine has no memory left"),
}


def from_os_error(failure: OSError, path: str | None = None) -> GuestError:
    """What the errno means, naming the path that the caller gave."""
    code, text = _BY_ERRNO.get(failure.errno or 0, ("invalid_request", failure.strerror or "input/output error"))
    named = path if path is not None else failure.filename
    if isinstance(named, bytes):
        named = named.decode("utf-8", "surrogateescape")
    if named is None or not isinstance(named, str):
        return GuestError(code, text)
    return GuestError(code, f"{named}: {text}", path=named)
