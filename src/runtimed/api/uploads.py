"""Large files in checked chunks. The guest keeps the chunks; an upload's id carries the digest to check at the end."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once
from runtimed.api.envelope import json_response
from runtimed.api.files import body_length, file_user, raw_body
from runtimed.api.idempotency import Answer, KeyedRequest
from runtimed.api.services import caller_of, services_of
from runtimed.core.ids import new_id
from runtimed.core.limits import UPLOAD_CHUNK_BYTES
from runtimed.wire import files as wire
from runtimed.wire.strict import Empty

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/uploads", tags=["files"])


@router.post("", response_model=wire.Upload)
async def begin(request: Request, sandbox_id: str, body: wire.BeginUpload) -> Response:
    """Announce a file of a known size; answers where its chunks go."""
    services, caller = services_of(request), caller_of(request)

    async def work(question: KeyedRequest) -> Answer:
        name = uuid.uuid5(uuid.NAMESPACE_OID, f"upload {question.process_id()}") if question.key else new_id()
        upload_id = f"{name}.{body.sha256 or ''}"
        mode = int(body.mode, 8) if body.mode else None
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            user = file_user(inside, body.user)
            await inside.guest.files.begin_upload(str(name), body.path, size=body.size, mode=mode, user=user)
        answer: dict[str, object] = {"uploadId": upload_id, "chunkBytes": UPLOAD_CHUNK_BYTES}
        return Answer(status=201, body=answer | ({"mode": body.mode} if body.mode else {}))

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.put("/{upload_id}")
async def put_chunk(request: Request, sandbox_id: str, upload_id: str, offset: Annotated[int, Query(ge=0)]) -> Response:
    """One chunk at its offset; in any order, and the same one twice is once."""
    services = services_of(request)
    body_length(request, max_bytes=UPLOAD_CHUNK_BYTES)
    with services.limits.call(sandbox_id):
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        data = b"".join([part async for part in raw_body(request, max_bytes=UPLOAD_CHUNK_BYTES)])
        await inside.guest.files.put_chunk(_split(upload_id)[0], offset=offset, data=data)
    return json_response(200, {"offset": offset, "bytes": len(data)})


@router.post("/{upload_id}:commit", response_model=wire.FileItem)
async def commit(request: Request, sandbox_id: str, upload_id: str, body: Empty | None = None) -> Response:
    """Check the whole and put it into its place at once."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        name, sha256 = _split(upload_id)
        with services.limits.call(sandbox_id):
            inside = await services.sandboxes.inside(caller, sandbox_id)
            entry = await inside.guest.files.commit_upload(name, sha256=sha256)
        return Answer(status=200, body=wire.entry_body(entry))

    return await answer_once(request, work, sandbox_id=sandbox_id, claim=False)


@router.post("/{upload_id}:abort")
async def abort(request: Request, sandbox_id: str, upload_id: str, body: Empty | None = None) -> Response:
    """Forget an upload. Idempotent."""
    services = services_of(request)
    with services.limits.call(sandbox_id):
        inside = await services.sandboxes.inside(caller_of(request), sandbox_id)
        await inside.guest.files.abort_upload(_split(upload_id)[0])
    return json_response(200, {"aborted": True})


def _split(upload_id: str) -> tuple[str, str | None]:
    name, _, sha256 = upload_id.partition(".")
    return name, sha256 or None
