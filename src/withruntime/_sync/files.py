# Generated from src/withruntime/_async/files.py by tools/unasync.py; do not edit.
# ruff: noqa: RUF100, UP028
"""Files of a sandbox: read, write, look, move; whole folders are in transfers.py."""

import io
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import IO

from withruntime import _file_calls, _uploads
from withruntime._calls import whole_text
from withruntime._retry import TransportFailure
from withruntime._sync import _io
from withruntime._sync.transfers import Transfers
from withruntime._values import Json

Entries = list[Json]


class Files(Transfers):
    """All paths are absolute paths of the sandbox; its user owns what is written."""

    def read(self, path: str) -> bytes:
        """The content, checked against the length and digest that the service announced.

        Raises:
            NotFoundError: there is no such file (`file_not_found`).
            InvalidRequestError: it is larger than 256 MiB (`too_large`): use `read_stream` or `download`.
            RuntimeError: it came broken three times (`download_incomplete`).
        """
        content = io.BytesIO()
        self._copy_content(path, content, max_bytes=_file_calls.READ_MAX_BYTES)
        return content.getvalue()

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """The content as text.

        Raises:
            UnicodeDecodeError: it is not text in that encoding.
        """
        return (self.read(path)).decode(encoding)

    def read_stream(self, path: str) -> Iterator[bytes]:
        """Yield the content as it comes, in pieces of any size; only the end says whether it was whole.

        Raises:
            RuntimeError: at the end, when it was not (`download_incomplete`).
        """
        digest, length = sha256(), 0
        try:
            with self._t.body(_file_calls.read(self._id, path)) as response:
                promise = _file_calls.promise_of(response.headers)
                with _io.closing(_io.chunks_of(response, lambda: None)) as pieces:
                    for piece in pieces:
                        digest.update(piece)
                        length += len(piece)
                        yield piece
        except TransportFailure as failure:
            raise _file_calls.incomplete(path) from failure
        if not promise.kept(length, digest.hexdigest):
            raise _file_calls.incomplete(path)

    def write(self, path: str, data: str | bytes | IO[bytes] | Iterable[bytes], mode: int | None = None) -> Json:
        """Create or replace a file, whole or not at all, with its parent folders.

        Besides text and bytes it takes a file opened for reading and any iterable of bytes; neither is held in
        memory. `mode` is permission bits such as 0o755.
        """
        if isinstance(data, str):
            data = whole_text(data, "data").encode()
        if isinstance(data, bytes | bytearray | memoryview) and len(data) <= _file_calls.SINGLE_SHOT_MAX_BYTES:
            return self._t.send(_file_calls.write(self._id, path, bytes(data), mode))
        source = _io.disk(_uploads.open_source, data)
        try:
            return self._write_source(path, source, mode)
        finally:
            source.close()

    def list(
        self,
        path: str = "/workspace",
        *,
        depth: int | None = None,
        glob: str | None = None,
        hidden: bool | None = None,
        limit: int | None = None,
    ) -> Entries:
        """The entries of a folder; names that begin with a dot only with `hidden=True`."""
        query = {"path": path, "depth": depth, "glob": glob, "hidden": hidden, "limit": limit}
        return self._t.send(_file_calls.list_files(self._id, query))

    def glob(self, pattern: str, root: str = "/workspace") -> Entries:
        """The entries below a folder that match, such as `**/*.py`."""
        return self.list(root, glob=pattern)

    def stat(self, path: str) -> Json:
        """What is at a path.

        Raises:
            NotFoundError: nothing (`file_not_found`).
        """
        return _file_calls.found(path, self._t.send(_file_calls.stat(self._id, path)))

    def exists(self, path: str) -> bool:
        """Whether anything is at a path."""
        return bool((self._t.send(_file_calls.stat(self._id, path))).get("exists", True))

    def mkdir(self, path: str, parents: bool = True) -> None:
        """Make a folder; with `parents` also those above it, and one that exists is fine."""
        self._t.send(_file_calls.mkdir(self._id, path, parents=parents))

    def remove(self, path: str, recursive: bool = False) -> bool:
        """Remove a file or folder. Returns whether there was one."""
        return self._t.send(_file_calls.remove(self._id, path, recursive=recursive))

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Move a file or folder."""
        self._t.send(_file_calls.rename(self._id, source, target, overwrite=overwrite))

    def chmod(self, path: str, mode: int) -> None:
        """Set permission bits such as 0o755."""
        self._t.send(_file_calls.chmod(self._id, path, mode))
