# Generated from src/withruntime/_async/transfers.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""Moves large files and whole folders between this machine and a sandbox, in checked parts."""

import contextlib
import errno
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import IO

from withruntime import _archives, _file_calls, _uploads
from withruntime._calls import new_key
from withruntime._errors import RuntimeError
from withruntime._file_calls import FileFacts, Upload
from withruntime._retry import TransportFailure
from withruntime._sync import _io
from withruntime._sync.transport import Transport
from withruntime._uploads import Source
from withruntime._values import Json


class Transfers:
    """Upload and download; the part of `files` that touches local files."""

    def __init__(self, t: Transport, sandbox_id: str) -> None:
        self._t = t
        self._id = sandbox_id

    def upload(self, local_path: str, remote_path: str, *, user: str = "sandbox") -> None:
        """Copy a local file, with its permission bits, or a folder, into the sandbox; a folder is merged into one
        that is there.

        Raises:
            OSError: the local file cannot be read.
        """
        local = Path(local_path)
        if not _io.disk(local.is_dir):
            source = _io.disk(_uploads.open_file, local)
            try:
                mode = local.stat().st_mode & 0o777
                if source.size <= _file_calls.SINGLE_SHOT_MAX_BYTES:
                    data = source.piece(0, source.size)
                    self._t.send(_file_calls.write(self._id, remote_path, data, mode))
                else:
                    self._write_source(remote_path, source, mode)
            finally:
                source.close()
            return
        with tempfile.TemporaryFile(prefix="withruntime-") as packed:
            _io.disk(_archives.pack, local, packed)
            packed.flush()
            packed.seek(0)
            source = _io.disk(_uploads.open_source, packed)
            self._unarchive_source(remote_path, source, gzip=True, user=user, key=None)

    def download(self, remote_path: str, local_path: str, *, user: str = "sandbox") -> None:
        """Copy a file or folder of the sandbox to this machine. A file is replaced whole or not at all.

        Raises:
            NotFoundError: there is nothing at that path (`file_not_found`).
            RuntimeError: it came incomplete (`download_incomplete`), or a folder holds something that would reach
                outside of where it is put (`unsafe_archive`); nothing was written then.
        """
        entry = _file_calls.found(remote_path, self._t.send(_file_calls.stat(self._id, remote_path)))
        if entry.get("type") == "directory":
            self._download_folder(remote_path, Path(local_path), user)
        else:
            self._download_file(remote_path, Path(local_path))

    def archive(
        self, path: str, *, gzip: bool = True, user: str = "sandbox", exclude: "list[str] | None" = None
    ) -> bytes:
        """A folder as tar or tar.gz, in memory; `download` does not need the memory."""
        return self._t.send(_file_calls.archive(self._id, path, gzip=gzip, user=user, exclude=exclude))

    def unarchive(
        self,
        path: str,
        data: bytes,
        *,
        gzip: bool | None = None,
        user: str = "sandbox",
        idempotency_key: str | None = None,
    ) -> None:
        """Unpack a tar or tar.gz into a folder of the sandbox. `gzip` is found out where it is not said."""
        packed = data[:2] == b"\x1f\x8b" if gzip is None else gzip
        source = _uploads.open_source(data)
        self._unarchive_source(path, source, gzip=packed, user=user, key=idempotency_key)

    def _write_source(self, path: str, source: Source, mode: int | None) -> Json:
        facts = FileFacts(path=path, size=source.size, sha256=source.sha256, mode=mode)
        upload = self._t.send(_file_calls.begin_upload(self._id, facts))
        written = self._send_parts(upload, source, at_once=_file_calls.CHUNKS_AT_ONCE)
        if mode is not None and not upload.mode_kept:
            self._t.send(_file_calls.chmod(self._id, path, mode))
        return written

    def _unarchive_source(self, path: str, source: Source, *, gzip: bool, user: str, key: str | None) -> None:
        if source.size <= _file_calls.SINGLE_SHOT_MAX_BYTES:
            data = source.piece(0, source.size)
            self._t.send(_file_calls.unarchive(self._id, path, data, user=user, key=key))
            return
        upload = self._t.send(_file_calls.begin_archive(self._id, path, gzip=gzip, user=user, key=key))
        self._send_parts(upload, source, at_once=1)

    def _send_parts(self, upload: Upload, source: Source, *, at_once: int) -> Json:
        def send_part(offset: int) -> None:
            piece = _io.disk(source.piece, offset, upload.chunk_bytes)
            self._t.send(_file_calls.put_chunk(upload, offset, piece))

        try:
            _io.for_each(range(0, source.size, upload.chunk_bytes), send_part, at_once=at_once)
            return self._t.send(_file_calls.commit(upload))
        except BaseException:
            _io.finish(lambda: self._abort(upload), within_s=10)
            raise

    def _abort(self, upload: Upload) -> None:
        with contextlib.suppress(RuntimeError):  # the service forgets it by itself, only later
            self._t.send(_file_calls.abort(upload))

    def _download_folder(self, remote_path: str, local: Path, user: str) -> None:
        call = _file_calls.archive(self._id, remote_path, gzip=True, user=user, exclude=None)
        with tempfile.TemporaryFile(prefix="withruntime-") as packed:
            try:
                with self._t.body(call) as response:
                    for piece in _io.chunks_of(response, lambda: None):
                        packed.write(piece)
            except TransportFailure as failure:
                raise _file_calls.incomplete(remote_path) from failure
            packed.seek(0)
            _io.disk(_archives.unpack, packed, local)

    def _download_file(self, remote_path: str, local: Path) -> None:
        if local.is_dir():
            raise IsADirectoryError(f"{local} is a directory: name the file in it")
        if not local.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(local.parent))
        partial = local.with_name(f".{local.name[:200]}.{new_key()}.partial")
        try:
            with partial.open("xb") as out:
                self._copy_content(remote_path, out)
            partial.replace(local)
        finally:
            partial.unlink(missing_ok=True)

    def _copy_content(self, path: str, out: IO[bytes], *, max_bytes: int | None = None) -> None:
        for _ in range(_file_calls.READ_TRIES):
            out.seek(0)
            out.truncate()
            with contextlib.suppress(TransportFailure):
                if self._copy_once(path, out, max_bytes):
                    return
        raise _file_calls.incomplete(path)

    def _copy_once(self, path: str, out: IO[bytes], max_bytes: int | None) -> bool:
        digest, length = sha256(), 0
        with self._t.body(_file_calls.read(self._id, path)) as response:
            promise = _file_calls.promise_of(response.headers)
            if max_bytes is not None and (promise.length or 0) > max_bytes:
                raise _file_calls.too_large(path, promise.length or 0, max_bytes)
            for piece in _io.chunks_of(response, lambda: None):
                digest.update(piece)
                length += len(piece)
                if max_bytes is not None and length > max_bytes:
                    raise _file_calls.too_large(path, length, max_bytes)
                out.write(piece)
        return promise.kept(length, digest.hexdigest)
