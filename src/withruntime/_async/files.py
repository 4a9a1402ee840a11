"""Files of a sandbox: read, write, look, move; whole folders are in transfers.py."""

import io
from collections.abc import AsyncIterator, Iterable
from hashlib import sha256
from typing import IO

from withruntime import _file_calls, _uploads
from withruntime._async import _io
from withruntime._async.transfers import AsyncTransfers
from withruntime._calls import whole_text
from withruntime._retry import TransportFailure
from withruntime._values import Json

Entries = list[Json]


class AsyncFiles(AsyncTransfers):
    """All paths are absolute paths of the sandbox; its user owns what is written."""

    async def read(self, path: str) -> bytes:
        """The content, checked against the length and digest that the service announced.

        Raises:
            NotFoundError: there is no such file (`file_not_found`).
            InvalidRequestError: it is larger than 256 MiB (`too_large`): use `read_stream` or `download`.
            RuntimeError: it came broken three times (`download_incomplete`).
        """
        content = io.BytesIO()
        await self._copy_content(path, content, max_bytes=_file_calls.READ_MAX_BYTES)
        return content.getvalue()

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """The content as text.

        Raises:
            UnicodeDecodeError: it is not text in that encoding.
        """
        return (await self.read(path)).decode(encoding)

    async def read_stream(self, path: str) -> AsyncIterator[bytes]:
        """Yield the content as it comes, in pieces of any size; only the end says whether it was whole.

        Raises:
            RuntimeError: at the end, when it was not (`download_incomplete`).
        """
        digest, length = sha256(), 0
        try:
            async with self._t.body(_file_calls.read(self._id, path)) as response:
                promise = _file_calls.promise_of(response.headers)
                async with _io.closing(_io.chunks_of(response, lambda: None)) as pieces:
                    async for piece in pieces:
                        digest.update(piece)
                        length += len(piece)
                        yield piece
        except TransportFailure as failure:
            raise _file_calls.incomplete(path) from failure
        if not promise.kept(length, digest.hexdigest):
            raise _file_calls.incomplete(path)

    async def write(self, path: str, data: str | bytes | IO[bytes] | Iterable[bytes], mode: int | None = None) -> Json:
        """Create or replace a file, whole or not at all, with its parent folders.

        Besides text and bytes it takes a file opened for reading and any iterable of bytes; neither is held in
        memory. `mode` is permission bits such as 0o755.
        """
        if isinstance(data, str):
            data = whole_text(data, "data").encode()
        if isinstance(data, bytes | bytearray | memoryview) and len(data) <= _file_calls.SINGLE_SHOT_MAX_BYTES:
            return await self._t.send(_file_calls.write(self._id, path, bytes(data), mode))
        source = await _io.disk(_uploads.open_source, data)
        try:
            return await self._write_source(path, source, mode)
        finally:
            source.close()

    async def list(
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
        return await self._t.send(_file_calls.list_files(self._id, query))

    async def glob(self, pattern: str, root: str = "/workspace") -> Entries:
        """The entries below a folder that match, such as `**/*.py`."""
        return await self.list(root, glob=pattern)

    async def stat(self, path: str) -> Json:
        """What is at a path.

        Raises:
            NotFoundError: nothing (`file_not_found`).
        """
        return _file_calls.found(path, await self._t.send(_file_calls.stat(self._id, path)))

    async def exists(self, path: str) -> bool:
        """Whether anything is at a path."""
        return bool((await self._t.send(_file_calls.stat(self._id, path))).get("exists", True))

    async def mkdir(self, path: str, parents: bool = True) -> None:
        """Make a folder; with `parents` also those above it, and one that exists is fine."""
        await self._t.send(_file_calls.mkdir(self._id, path, parents=parents))

    async def remove(self, path: str, recursive: bool = False) -> bool:
        """Remove a file or folder. Returns whether there was one."""
        return await self._t.send(_file_calls.remove(self._id, path, recursive=recursive))

    async def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Move a file or folder."""
        await self._t.send(_file_calls.rename(self._id, source, target, overwrite=overwrite))

    async def chmod(self, path: str, mode: int) -> None:
        """Set permission bits such as 0o755."""
        await self._t.send(_file_calls.chmod(self._id, path, mode))
