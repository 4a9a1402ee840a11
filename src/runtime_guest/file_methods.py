"""What the host can ask about files, method by method; the blocking work is done in threads with the user's rights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, TypeVar

from runtime_guest import files
from runtime_guest.archives import Unpacking, pack
from runtime_guest.errors import GuestError, from_os_error
from runtime_guest.files import Listing, Reading, Staging, path_of
from runtime_guest.globs import Exclusions
from runtime_guest.rights import TRANSFERS, Workers
from runtime_guest.streams import Stream, answer
from runtime_guest.uploads import Upload, Uploads
from runtime_guest.users import Users

T = TypeVar("T")

STEP_BYTES = 1 << 20
"""Read or written in one visit to a thread: each visit costs the loop a wake-up."""
CHUNK_MAX_BYTES = 4 << 20


class FileMethods:
    """Files for the host."""

    def __init__(self, users: Users, workers: Workers) -> None:
        self._users, self._workers = users, workers
        self._uploads = Uploads()
        self._unpacking = 0

    async def _do(self, params: dict[str, Any], path: str | None, work: Callable[[], T]) -> T:
        """In a thread, as the asked user; a failure names the path that the caller gave."""
        try:
            return await self._workers.run(_user(params), work)
        except OSError as failure:
            raise from_os_error(failure, path) from failure

    async def read(self, stream: Stream, params: dict[str, Any]) -> None:
        path = path_of(params["path"])
        reading = await self._do(params, path, lambda: Reading(path))
        try:
            head = {"size": reading.size, "mode": reading.mode, "sha256": reading.sha256}
            stream.widen()
            await stream.send_message(head, last=not reading.size)
            left = reading.size
            while left:
                data = await self._do(params, path, lambda: reading.next(STEP_BYTES))
                left -= len(data)
                await stream.send(data, last=not left)
        finally:
            reading.close()

    async def write(self, stream: Stream, params: dict[str, Any]) -> None:
        path, size = path_of(params["path"]), params.get("size")
        staging = await self._do(params, path, lambda: Staging(path, params.get("mode")))
        try:
            stream.widen()
            came = await self._receive(stream, lambda data: files.write_all(staging.fd, data), params, path)
            if size is not None and came != int(size):
                raise GuestError("upload_incomplete", f"{path}: {came} bytes came instead of {size}", path=path)
            done = await self._do(params, path, lambda: self._commit(staging, bool(params.get("durable"))))
        finally:
            staging.abort()
        await answer(stream, done)

    def _commit(self, staging: Staging, durable: bool) -> dict[str, Any]:
        staging.commit(durable=durable)
        return files.entry(staging.path, self._users)

    async def _receive(
        self, stream: Stream, write: Callable[[bytearray], None], params: dict[str, Any], path: str
    ) -> int:
        """Write what comes until the host ends its side, a step at a time; answers how much it was."""
        came, step = 0, bytearray()
        while True:
            item = await stream.receive()
            if isinstance(item, bytes):
                step += item
                came += len(item)
            if len(step) >= STEP_BYTES or (item is None and step):
                data, step = step, bytearray()
                await self._do(params, path, lambda data=data: write(data))  # type: ignore[misc]
            if item is None:
                return came

    async def begin_upload(self, stream: Stream, params: dict[str, Any]) -> None:
        path, upload_id, size = path_of(params["path"]), str(params["upload_id"]), int(params["size"])
        if self._uploads.find(upload_id) is None:
            self._uploads.check_room()
            staging = await self._do(params, path, lambda: Staging(path, params.get("mode")))
            self._uploads.add(upload_id, Upload(staging, size, _user(params)))
        await answer(stream, {})

    async def put_chunk(self, stream: Stream, params: dict[str, Any]) -> None:
        upload, offset, length = self._uploads.get(params["upload_id"]), int(params["offset"]), int(params["bytes"])
        if offset < 0 or length > CHUNK_MAX_BYTES or offset + length > upload.size:
            raise GuestError("invalid_request", f"the file has {upload.size} bytes", field="offset")
        upload.busy += 1
        try:
            stream.widen()
            data = bytearray()
            while (item := await stream.receive()) is not None:
                data += item if isinstance(item, bytes) else b""
                if len(data) > length:
                    break
            if len(data) != length:
                raise GuestError("upload_incomplete", f"{len(data)} bytes came instead of {length}")
            user = {"user": upload.user}
            await self._do(user, upload.staging.path, lambda: upload.put(offset, bytes(data)))
            upload.came(offset, offset + length)
        finally:
            upload.busy -= 1
        await answer(stream, {})

    async def commit_upload(self, stream: Stream, params: dict[str, Any]) -> None:
        upload_id = str(params["upload_id"])
        upload = self._uploads.get(upload_id)
        path, missing = upload.staging.path, upload.missing()
        if missing is not None or upload.busy:
            raise GuestError("upload_incomplete", f"{path}: bytes from {missing} on are missing", path=path)
        upload.busy += 1
        try:
            await self._do({"user": upload.user}, path, lambda: upload.commit(params.get("sha256")))
        finally:
            upload.busy -= 1
        self._uploads.drop(upload_id)
        await answer(stream, await self._do(params, path, lambda: files.entry(path, self._users)))

    async def abort_upload(self, stream: Stream, params: dict[str, Any]) -> None:
        upload = self._uploads.drop(str(params["upload_id"]))
        if upload is not None:
            await self._do({"user": upload.user}, upload.staging.path, upload.staging.abort)
        await answer(stream, {})

    async def list(self, stream: Stream, params: dict[str, Any]) -> None:
        path = path_of(params["path"])
        listing = Listing(path, int(params["depth"]), params.get("glob"), bool(params["hidden"]), int(params["limit"]))
        await answer(stream, {"entries": await self._do(params, path, lambda: listing.entries(self._users))})

    async def stat(self, stream: Stream, params: dict[str, Any]) -> None:
        path = path_of(params["path"])

        def look() -> dict[str, Any] | None:
            try:
                return files.entry(path, self._users)
            except (FileNotFoundError, NotADirectoryError):
                return None

        await answer(stream, {"entry": await self._do(params, path, look)})

    async def mkdir(self, stream: Stream, params: dict[str, Any]) -> None:
        path = path_of(params["path"])
        await self._do(params, path, lambda: files.make_folder(path, bool(params["parents"])))
        await answer(stream, {})

    async def remove(self, stream: Stream, params: dict[str, Any]) -> None:
        path = path_of(params["path"])
        removed = await self._do(params, path, lambda: files.remove(path, bool(params["recursive"])))
        await answer(stream, {"removed": removed})

    async def rename(self, stream: Stream, params: dict[str, Any]) -> None:
        source, target = path_of(params["source"], "from"), path_of(params["target"], "to")
        try:
            await self._workers.run(_user(params), lambda: files.rename(source, target, bool(params["overwrite"])))
        except OSError as failure:
            raise from_os_error(failure, str(failure.filename or source)) from failure
        await answer(stream, {})

    async def chmod(self, stream: Stream, params: dict[str, Any]) -> None:
        path, mode = path_of(params["path"]), int(params["mode"]) & 0o7777
        await self._do(params, path, lambda: os.chmod(path, mode))
        await answer(stream, {})

    async def read_archive(self, stream: Stream, params: dict[str, Any]) -> None:
        path = path_of(params["path"])
        pieces = pack(path, Exclusions(list(params["exclude"])), self._users, gzip=bool(params["gzip"]))
        data = await self._do(params, path, lambda: next(pieces, b""))
        stream.widen()
        await stream.send_message({"size": 0, "mode": 0o644, "sha256": None})
        while data:
            await stream.send(data)
            data = await self._do(params, path, lambda: next(pieces, b""))
        stream.end()

    async def write_archive(self, stream: Stream, params: dict[str, Any]) -> None:
        """Unpack while it comes, through a pipe to a thread that may block."""
        path = path_of(params["path"])
        if self._unpacking >= TRANSFERS:
            raise GuestError("guest_busy", f"{TRANSFERS} archives are being unpacked already")
        self._unpacking += 1
        try:
            stream.widen()
            read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
            work = asyncio.ensure_future(
                self._workers.run(_user(params), lambda: _unpack(path, read_fd), transfer=True)
            )
            try:
                await _feed(stream, write_fd, work)
            finally:
                os.close(write_fd)
                await asyncio.wait({work})
            work.result()
            while await stream.receive() is not None:
                pass  # What came after the archive's end: unread, it would keep the host waiting for credit.
        except OSError as failure:
            raise from_os_error(failure, path) from failure
        finally:
            self._unpacking -= 1
        await answer(stream, {})


def _user(params: dict[str, Any]) -> str:
    return "root" if params.get("user") == "root" else "sandbox"


def _unpack(path: str, read_fd: int) -> None:
    with open(read_fd, "rb", buffering=0) as source:
        Unpacking(path).unpack(source)


async def _feed(stream: Stream, write_fd: int, work: asyncio.Future[None]) -> None:
    """Pass on what comes until it ends, or until the reader has given up."""
    loop = asyncio.get_running_loop()
    os.set_blocking(write_fd, False)
    while not work.done() and (item := await stream.receive()) is not None:
        view = memoryview(item if isinstance(item, bytes) else b"")
        while len(view) and not work.done():
            try:
                view = view[os.write(write_fd, view) :]
            except BlockingIOError:
                writable: asyncio.Future[None] = loop.create_future()
                loop.add_writer(write_fd, lambda f=writable: f.done() or f.set_result(None))  # type: ignore[misc]
                try:
                    await asyncio.wait({writable, work}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    loop.remove_writer(write_fd)
            except BrokenPipeError:
                return
