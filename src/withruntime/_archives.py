"""Packs folders and unpacks them again, refusing what would reach outside; local files only, no network."""

import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from withruntime._errors import RuntimeError

_COPY_BYTES = 1 << 20


def pack(folder: Path, target: IO[bytes]) -> None:
    """Write a folder as tar.gz with everything in it relative to `.`; sockets and devices are left out."""
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
        for path, name in _walk(folder, PurePosixPath(".")):
            member = archive.gettarinfo(path, arcname=str(name))
            if member is None or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                continue
            # Owners are the service's to say: the ids of this machine mean nothing there.
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if member.isreg():
                with path.open("rb") as content:
                    archive.addfile(member, content)
            else:
                archive.addfile(member)


def _walk(folder: Path, name: PurePosixPath) -> Iterator[tuple[Path, PurePosixPath]]:
    yield folder, name
    for entry in sorted(folder.iterdir()):
        inner = name / entry.name
        if entry.is_dir() and not entry.is_symlink():
            yield from _walk(entry, inner)
        else:
            yield entry, inner


def unpack(source: IO[bytes], folder: Path) -> None:
    """Unpack a tar.gz into a folder, made if need be. Nothing is written unless all of it is whole and safe.

    Raises:
        RuntimeError: a member would reach outside (`unsafe_archive`), or the archive is cut short
            (`download_incomplete`).
    """
    _check(source)
    source.seek(0)
    folder.mkdir(parents=True, exist_ok=True)
    later: list[tuple[Path, tarfile.TarInfo]] = []
    with tarfile.open(fileobj=source, mode="r:gz") as archive:
        for member in archive:
            parts = _parts(member.name)
            target = folder.joinpath(*parts)
            if member.isdir():
                _make_folders(folder, parts)
                later.append((target, member))
            elif member.isreg() or member.issym() or member.islnk():
                _make_folders(folder, parts[:-1])
                _put(archive, member, target, folder)
    for target, member in reversed(later):  # a folder that may not be written is closed after it is filled
        target.chmod(stat.S_IMODE(member.mode) & 0o777)


def _put(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, folder: Path) -> None:
    if target.is_symlink() or target.is_file():
        target.unlink()
    if member.issym():
        target.symlink_to(member.linkname)
        return
    if member.islnk():
        os.link(folder.joinpath(*_parts(member.linkname)), target, follow_symlinks=False)
        return
    content = archive.extractfile(member)
    assert content is not None, "a regular member has content"
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as out:
        while piece := content.read(_COPY_BYTES):
            out.write(piece)
        os.fchmod(out.fileno(), stat.S_IMODE(member.mode) & 0o777)
    os.utime(target, (member.mtime, member.mtime))


def _make_folders(folder: Path, parts: tuple[str, ...]) -> None:
    """Make each folder on the way; one that is a link already may lead anywhere, so it is refused."""
    here = folder
    for part in parts:
        here /= part
        if here.is_symlink():
            raise _unsafe(str(here), "a link is in its way")
        here.mkdir(exist_ok=True)


def _check(source: IO[bytes]) -> None:
    """Read the whole archive once: every name, every link, and its end."""
    seen_files: set[tuple[str, ...]] = set()
    links: set[tuple[str, ...]] = set()
    try:
        with tarfile.open(fileobj=source, mode="r:gz") as archive:
            for member in archive:
                _check_member(member, seen_files, links)
            _check_end(archive)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise _cut_short() from error


def _check_member(member: tarfile.TarInfo, files: set[tuple[str, ...]], links: set[tuple[str, ...]]) -> None:
    parts = _parts(member.name)
    if any(parts[:depth] in links for depth in range(1, len(parts))):
        raise _unsafe(member.name, "it goes through a link")
    if member.issym():
        _check_link(member, parts)
        links.add(parts)
        return
    links.discard(parts)
    if member.islnk() and _parts(member.linkname) not in files:
        raise _unsafe(member.name, "it is a hard link to something that did not come before it")
    if member.isreg() or member.islnk():
        files.add(parts)


def _check_link(member: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
    if member.linkname.startswith("/"):
        raise _unsafe(member.name, f"it is a link to {member.linkname}")
    depth = len(parts) - 1
    for part in PurePosixPath(member.linkname).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            raise _unsafe(member.name, f"it is a link to {member.linkname}")


def _check_end(archive: tarfile.TarFile) -> None:
    """An archive ends with two blocks of zeros; one that was cut between two members lacks them."""
    plain = archive.fileobj
    assert plain is not None, "an open archive has a file"
    read_of_end = plain.tell() - archive.offset
    rest = plain.read(tarfile.RECORDSIZE * 2)
    if read_of_end != tarfile.BLOCKSIZE or len(rest) < tarfile.BLOCKSIZE or rest.strip(b"\0"):
        raise _cut_short()


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise _unsafe(name, "its name leads outside")
    return path.parts


def _unsafe(name: str, why: str) -> RuntimeError:
    return RuntimeError(
        f"The archive was refused because of {name!r}: {why}.",
        code="unsafe_archive",
        hint="Read the files one by one if you trust them, or remove it in the sandbox.",
    )


def _cut_short() -> RuntimeError:
    return RuntimeError("The folder did not arrive whole; nothing was written.", code="download_incomplete")
