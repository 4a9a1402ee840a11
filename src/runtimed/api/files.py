"""Files: their bytes, streamed both ways, and the verbs on paths."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once
from runtimed.api.envelope import json_response
from runtimed.api.idempotency import Answer, KeyedRequest
from runtimed.api.services import caller_of, services_of
from runtimed.api.streaming import Streamed
from runtimed.core.errors import TooLarge
from runtimed.core.files import WriteOptions
from runtimed.core.limits import FILE_SINGLE_MAX_BYTES
from runtimed.core.ports import FileReading
from runtimed.core.sandbox import Inside
from runtimed.core.specs import UserName
from runtimed.wire import files as wire
from runtimed.wire.strict import AbsolutePath, Mode

LIST_MAX = 10_000
"""Entries in one answer; a listing has no pages."""
GLOB_DEPTH = 64
"""A pattern searches below its folder without being told how deep."""

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["files"])

PathQuery = Annotated[AbsolutePath, Query()]


def file_user(inside: Inside, asked: UserName | None) -> UserName:
    """Whose rights a file call has: the one it names, else those of the sandbox's commands."""
    return asked or inside.record.user


async def raw_body(request: Request, *, max_bytes: int) -> AsyncIterator[bytes]:
    """The request's bytes as they come. Raises TooLarge past the limit."""
    seen = 0
    async for part in request.stream():
        seen += len(part)
        if seen > max_bytes:
            raise _too_large(max_bytes)
        if part:
            yield part


def body_length(request: Request, *, max_bytes: int) -> int | None:
    """What the request says of its length. Raises TooLarge past the limit."""
    said = request.headers.get("content-length")
    if said is None or not said.isdigit():
        return None
    if int(said) > max_bytes:
        raise _too_large(max_bytes)
    return int(said)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"one request carries at most {max_bytes} bytes", hint="upload it in chunks: POST uploads")


async def body_of(reading: FileReading) -> AsyncGenerator[bytes]:
    async for chunk in reading.chunks():
        yield chunk


@router.get("/files/content")
async def read(request: Request, sandbox_id: str, path: PathQuery, user: wire.User | None = None) -> Response:
    """The bytes of a file."""
    services = services_of(request)
    async with AsyncExitStack() as stack:
        stack.enter_context(services.limits.call(sandbox_id))
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        reading = await stack.enter_async_context(inside.guest.files.read(path, user=file_user(inside, user)))
        size = str(reading.head.size)
        headers = {"Content-Length": size, "X-Content-Length": size}
        if reading.head.sha256:
            headers["X-Content-Sha256"] = reading.head.sha256
        return Streamed(
            body_of(reading),
            media_type="application/octet-stream",
            headers=headers,
            open_until_sent=stack.pop_all(),
        )


@router.put("/files/content", response_model=wire.FileItem)
async def write(
    request: Request,
    sandbox_id: str,
    path: PathQuery,
    mode: Annotated[Mode | None, Query()] = None,
    user: wire.User | None = None,
    durable: bool = False,
) -> Response:
    """Replace a file at once, making its folders. The body is its bytes, at most 1 MiB."""
    services = services_of(request)
    size = body_length(request, max_bytes=FILE_SINGLE_MAX_BYTES)
    with services.limits.call(sandbox_id):
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        options = WriteOptions(
            user=file_user(inside, user), size=size, mode=int(mode, 8) if mode else None, durable=durable
        )
        data = raw_body(request, max_bytes=FILE_SINGLE_MAX_BYTES)
        entry = await inside.guest.files.write(path, data, options)
    return json_response(200, wire.entry_body(entry))


@router.get("/files/list", response_model=wire.FileItems)
async def listing(  # noqa: PLR0913 - one parameter for each of the query's
    request: Request,
    sandbox_id: str,
    path: PathQuery,
    depth: Annotated[int | None, Query(ge=1, le=GLOB_DEPTH)] = None,
    glob: Annotated[str | None, Query(min_length=1, max_length=4096)] = None,
    hidden: bool = False,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = LIST_MAX,
    user: wire.User | None = None,
) -> Response:
    """What is in a folder, `depth` levels down (1 by default), or what a pattern finds below it."""
    services = services_of(request)
    levels = depth or (GLOB_DEPTH if glob else 1)
    with services.limits.call(sandbox_id):
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        found = await inside.guest.files.list(
            path, depth=levels, glob=glob, hidden=hidden, limit=limit, user=file_user(inside, user)
        )
    return json_response(200, {"data": [wire.entry_body(entry) for entry in found]})


@router.get("/files/stat")
async def stat(request: Request, sandbox_id: str, path: PathQuery, user: wire.User | None = None) -> Response:
    """One entry, or `{"exists": false}`."""
    services = services_of(request)
    with services.limits.call(sandbox_id):
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        found = await inside.guest.files.stat(path, user=file_user(inside, user))
    return json_response(200, {"exists": False} if found is None else wire.entry_body(found) | {"exists": True})


@router.post("/files:mkdir", response_model=wire.FileItem)
async def mkdir(request: Request, sandbox_id: str, body: wire.MakeFolder) -> Response:
    """Make a folder, by default with its parents."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            user = file_user(inside, body.user)
            await inside.guest.files.mkdir(body.path, parents=body.parents, user=user)
            entry = await inside.guest.files.stat(body.path, user=user)
        return Answer(status=200, body=wire.entry_body(entry) if entry else {})

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.post("/files:remove", response_model=wire.Removed)
async def remove(request: Request, sandbox_id: str, body: wire.RemovePath) -> Response:
    """Remove a file, or a folder with `recursive`; says whether there was one."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            user = file_user(inside, body.user)
            removed = await inside.guest.files.remove(body.path, recursive=body.recursive, user=user)
        return Answer(status=200, body={"removed": removed})

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.post("/files:rename")
async def rename(request: Request, sandbox_id: str, body: wire.RenamePath) -> Response:
    """Move a file or folder within the sandbox."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            user = file_user(inside, body.user)
            await inside.guest.files.rename(body.source, body.to, overwrite=body.overwrite, user=user)
        return Answer(status=200, body={"from": body.source, "to": body.to})

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.post("/files:chmod")
async def chmod(request: Request, sandbox_id: str, body: wire.ChangeMode) -> Response:
    """Change the permission bits of a path."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            user = file_user(inside, body.user)
            await inside.guest.files.chmod(body.path, mode=int(body.mode, 8), user=user)
        return Answer(status=200, body={"path": body.path, "mode": body.mode})

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)
