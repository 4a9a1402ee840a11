"""Folders as one tar, both ways. A long upload flows into the guest chunk by chunk and never waits on a disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once
from runtimed.api.envelope import json_response
from runtimed.api.files import PathQuery, body_length, body_of, file_user, raw_body
from runtimed.api.idempotency import Answer, KeyedRequest
from runtimed.api.services import caller_of, services_of
from runtimed.api.streaming import Streamed
from runtimed.core.errors import Interrupted, RateLimited, RuntimedError, UploadIncomplete, UploadNotFound
from runtimed.core.ids import new_id
from runtimed.core.limits import FILE_SINGLE_MAX_BYTES, UPLOAD_CHUNK_BYTES
from runtimed.core.tasks import spawn
from runtimed.wire import files as wire
from runtimed.wire.strict import Empty

ARCHIVE_UPLOADS_MAX = 64
"""At once in the whole service; each holds one chunk of memory and one stream into a guest."""
QUIET_MAX_S = 600.0
"""An upload whose client sends nothing for this long is given up."""

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/files/archive", tags=["files"])


@router.get("")
async def download(
    request: Request,
    sandbox_id: str,
    path: PathQuery,
    gzip: bool = True,
    user: wire.User | None = None,
    exclude: Annotated[list[str] | None, Query(max_length=64)] = None,
) -> Response:
    """A folder as a tar, gzipped by default."""
    services = services_of(request)
    async with AsyncExitStack() as stack:
        stack.enter_context(services.limits.call(sandbox_id))
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        archive = inside.guest.files.read_archive(
            path, gzip=gzip, exclude=tuple(exclude or ()), user=file_user(inside, user)
        )
        reading = await stack.enter_async_context(archive)
        media_type = "application/gzip" if gzip else "application/x-tar"
        return Streamed(body_of(reading), media_type=media_type, open_until_sent=stack.pop_all())


@router.put("")
async def upload(request: Request, sandbox_id: str, path: PathQuery, user: wire.User | None = None) -> Response:
    """Unpack a tar or tar.gz of at most 1 MiB into a folder, merging with what is there."""
    services = services_of(request)
    body_length(request, max_bytes=FILE_SINGLE_MAX_BYTES)
    with services.limits.call(sandbox_id):
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        data = raw_body(request, max_bytes=FILE_SINGLE_MAX_BYTES)
        await inside.guest.files.write_archive(path, data, user=file_user(inside, user))
    return json_response(200, {"path": path})


@dataclass
class _Flow:
    """One upload on its way. Chunks come in order; each PUT returns when the guest has taken its chunk."""

    sandbox_id: str
    chunks: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(maxsize=1))
    position: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    unpacking: asyncio.Task[RuntimedError | None] | None = None

    async def data(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(QUIET_MAX_S):
                    chunk = await self.chunks.get()
            except TimeoutError:
                raise Interrupted(f"no more of the archive came for {QUIET_MAX_S:g} s") from None
            if chunk is None:
                return
            yield chunk

    async def give(self, chunk: bytes | None) -> None:
        """Hand one chunk on, None being the end. Raises what the unpacking failed with."""
        assert self.unpacking is not None
        giving = spawn(self.chunks.put(chunk), name="give a chunk")
        await asyncio.wait({giving, self.unpacking}, return_when=asyncio.FIRST_COMPLETED)
        if not giving.done():
            giving.cancel()
        if self.unpacking.done() and (error := self.unpacking.result()) is not None:
            raise error


def _flows(request: Request) -> dict[str, _Flow]:
    flows: dict[str, _Flow] = request.app.state.archive_flows
    return flows


def _flow(request: Request, sandbox_id: str, upload_id: str) -> _Flow:
    flow = _flows(request).get(upload_id)
    if flow is None or flow.sandbox_id != sandbox_id:
        raise UploadNotFound(f"there is no upload {upload_id!r}", hint="begin it again")
    return flow


@router.post("/uploads", response_model=wire.Upload)
async def begin(request: Request, sandbox_id: str, body: wire.BeginArchive) -> Response:
    """Begin to unpack an archive that comes in chunks, in order."""
    services, caller, flows = services_of(request), caller_of(request), _flows(request)

    async def work(_: KeyedRequest) -> Answer:
        inside = await services.sandboxes.inside(caller, sandbox_id)
        if len(flows) >= ARCHIVE_UPLOADS_MAX:
            raise RateLimited(f"{ARCHIVE_UPLOADS_MAX} folders are being uploaded", retry_after_ms=1000)
        flow = _Flow(sandbox_id)
        upload_id = new_id()

        async def unpack() -> RuntimedError | None:
            try:
                await inside.guest.files.write_archive(body.path, flow.data(), user=file_user(inside, body.user))
            except RuntimedError as error:
                return error
            return None

        flow.unpacking = spawn(unpack(), name=f"unpack {upload_id}")
        flows[upload_id] = flow
        spawn(_forget(flows, upload_id, flow.unpacking), name=f"forget {upload_id}")
        return Answer(status=201, body={"uploadId": upload_id, "chunkBytes": UPLOAD_CHUNK_BYTES})

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


async def _forget(flows: dict[str, _Flow], upload_id: str, unpacking: asyncio.Task[RuntimedError | None]) -> None:
    """An upload that has failed or ended stays a while, so that its client can still learn how."""
    await asyncio.wait({unpacking})
    await asyncio.sleep(60)
    flows.pop(upload_id, None)


@router.put("/uploads/{upload_id}")
async def put_chunk(request: Request, sandbox_id: str, upload_id: str, offset: Annotated[int, Query(ge=0)]) -> Response:
    """The next chunk. One that was taken already is taken once; one ahead of its turn is refused."""
    services = services_of(request)
    await services.sandboxes.inside(caller_of(request), sandbox_id)
    flow = _flow(request, sandbox_id, upload_id)
    body_length(request, max_bytes=UPLOAD_CHUNK_BYTES)
    data = b"".join([part async for part in raw_body(request, max_bytes=UPLOAD_CHUNK_BYTES)])
    async with flow.lock:
        if offset > flow.position:
            raise UploadIncomplete(f"the next chunk is that at {flow.position}", details={"offset": flow.position})
        new = data[flow.position - offset :]
        if new:
            await flow.give(new)
            flow.position += len(new)
    return json_response(200, {"offset": flow.position})


@router.post("/uploads/{upload_id}:commit")
async def commit(request: Request, sandbox_id: str, upload_id: str, body: Empty | None = None) -> Response:
    """End the archive and wait until all of it is unpacked. Idempotent."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        await services.sandboxes.inside(caller, sandbox_id)
        flow = _flow(request, sandbox_id, upload_id)
        async with flow.lock:
            assert flow.unpacking is not None
            if not flow.unpacking.done():
                await flow.give(None)
            error = await asyncio.shield(flow.unpacking)
        if error is not None:
            raise error
        return Answer(status=200, body={"bytes": flow.position})

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.post("/uploads/{upload_id}:abort")
async def abort(request: Request, sandbox_id: str, upload_id: str, body: Empty | None = None) -> Response:
    """Give an upload up; what is unpacked already stays. Idempotent."""
    services = services_of(request)
    await services.sandboxes.inside(caller_of(request), sandbox_id)
    flow = _flows(request).pop(upload_id, None)
    if flow is not None and flow.sandbox_id == sandbox_id and flow.unpacking is not None:
        flow.unpacking.cancel()
    return json_response(200, {"aborted": True})
