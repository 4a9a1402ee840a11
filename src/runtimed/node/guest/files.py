"""Files of one machine, asked of its agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

from runtimed.core.files import FileEntry, FileHead, WriteOptions
from runtimed.core.ports import FileReading
from runtimed.core.specs import UserName
from runtimed.node.channel import Channel, result_of
from runtimed.node.guest.decode import Reply, ask
from runtimed.wire.frames import Json, ProtocolViolation
from runtimed.wire.streams import Stream

SLOW_WITHIN_S = 600.0
"""For what may touch very many files, or hash a very large one."""
_TYPES: tuple[Literal["file", "directory", "symlink", "other"], ...] = ("file", "directory", "symlink", "other")


class _Reading:
    """Implements core.ports.FileReading over an open stream."""

    def __init__(self, channel: Channel, stream: Stream, head: FileHead, *, sized: bool) -> None:
        self.head = head
        self._channel, self._stream, self._sized = channel, stream, sized

    async def chunks(self) -> AsyncIterator[bytes]:
        came = 0
        while (data := await self._next(came)) is not None:
            came += len(data)
            yield data

    async def _next(self, came: int) -> bytes | None:
        with self._channel.told():
            item = await self._stream.receive()
            if item is not None and not isinstance(item, bytes):
                raise ProtocolViolation("a message among the bytes of a file")
            came += 0 if item is None else len(item)
            if self._sized and (came > self.head.size or (item is None and came < self.head.size)):
                raise ProtocolViolation("a file of another length than announced")
            return item


class FileClient:
    """Implements core.ports.GuestFiles."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def read(self, path: str, *, user: UserName) -> AbstractAsyncContextManager[FileReading]:
        return self._reading("file.read", {"path": path, "user": user}, sized=True)

    async def write(self, path: str, data: AsyncIterator[bytes], options: WriteOptions) -> FileEntry:
        params: Json = {
            "path": path,
            "user": options.user,
            "size": options.size,
            "mode": options.mode,
            "durable": options.durable,
        }
        async with self._channel.stream("file.write", params) as stream:
            async for piece in data:
                await stream.send(piece)
            stream.end()
            return _entry(Reply(await result_of(stream)))

    async def begin_upload(self, upload_id: str, path: str, *, size: int, mode: int | None, user: UserName) -> None:
        params = {"upload_id": upload_id, "path": path, "size": size, "mode": mode, "user": user}
        await self._channel.request("file.upload_begin", params)

    async def put_chunk(self, upload_id: str, *, offset: int, data: bytes) -> None:
        params = {"upload_id": upload_id, "offset": offset, "bytes": len(data)}
        async with self._channel.stream("file.upload_chunk", params) as stream:
            await stream.send(data, last=True)
            await result_of(stream)

    async def commit_upload(self, upload_id: str, *, sha256: str | None) -> FileEntry:
        params = {"upload_id": upload_id, "sha256": sha256}
        return await ask(self._channel, "file.upload_commit", params, _entry, within_s=SLOW_WITHIN_S)

    async def abort_upload(self, upload_id: str) -> None:
        await self._channel.request("file.upload_abort", {"upload_id": upload_id})

    async def list(
        self, path: str, *, depth: int, glob: str | None, hidden: bool, limit: int, user: UserName
    ) -> list[FileEntry]:
        params = {"path": path, "depth": depth, "glob": glob, "hidden": hidden, "limit": limit, "user": user}

        def entries(reply: Reply) -> list[FileEntry]:
            return [_entry(Reply(item)) for item in reply.items("entries")[:limit]]

        return await ask(self._channel, "file.list", params, entries, within_s=SLOW_WITHIN_S)

    async def stat(self, path: str, *, user: UserName) -> FileEntry | None:
        def found(reply: Reply) -> FileEntry | None:
            return _entry(reply.inner("entry")) if reply.has("entry") else None

        return await ask(self._channel, "file.stat", {"path": path, "user": user}, found)

    async def mkdir(self, path: str, *, parents: bool, user: UserName) -> None:
        await self._channel.request("file.mkdir", {"path": path, "parents": parents, "user": user})

    async def remove(self, path: str, *, recursive: bool, user: UserName) -> bool:
        params = {"path": path, "recursive": recursive, "user": user}
        return await ask(
            self._channel, "file.remove", params, lambda reply: reply.boolean("removed"), within_s=SLOW_WITHIN_S
        )

    async def rename(self, source: str, target: str, *, overwrite: bool, user: UserName) -> None:
        params = {"source": source, "target": target, "overwrite": overwrite, "user": user}
        await self._channel.request("file.rename", params)

    async def chmod(self, path: str, *, mode: int, user: UserName) -> None:
        await self._channel.request("file.chmod", {"path": path, "mode": mode, "user": user})

    def read_archive(
        self, path: str, *, gzip: bool, exclude: tuple[str, ...], user: UserName
    ) -> AbstractAsyncContextManager[FileReading]:
        params: Json = {"path": path, "gzip": gzip, "exclude": list(exclude), "user": user}
        return self._reading("file.archive_read", params, sized=False)

    async def write_archive(self, path: str, data: AsyncIterator[bytes], *, user: UserName) -> None:
        async with self._channel.stream("file.archive_write", {"path": path, "user": user}) as stream:
            async for piece in data:
                await stream.send(piece)
            stream.end()
            await result_of(stream)

    @asynccontextmanager
    async def _reading(self, method: str, params: Json, *, sized: bool) -> AsyncIterator[FileReading]:
        async with self._channel.stream(method, params, last=True) as stream:
            with self._channel.told():
                head = Reply(await stream.receive())
                size = head.integer("size")
                if size < 0:
                    raise ProtocolViolation("a file of a negative size")
                announced = FileHead(size=size, mode=head.integer("mode"), sha256=head.text_or_none("sha256"))
            stream.widen()
            yield _Reading(self._channel, stream, announced, sized=sized)


def _entry(reply: Reply) -> FileEntry:
    kind = reply.text("type")
    return FileEntry(
        name=reply.text("name"),
        path=reply.text("path"),
        type=next((known for known in _TYPES if known == kind), "other"),
        size=reply.integer("size"),
        mode=reply.integer("mode"),
        modified_at_s=reply.number("modified_at_s"),
        uid=reply.integer("uid"),
        gid=reply.integer("gid"),
        owner=reply.text("owner"),
        group=reply.text("group"),
        symlink_target=reply.text_or_none("symlink_target"),
    )
