"""Snapshots: taken of a sandbox, listed, changed, kept longer, deleted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once, prefer_wait_s
from runtimed.api.auditing import note
from runtimed.api.envelope import json_response
from runtimed.api.idempotency import Answer, KeyedRequest
from runtimed.api.services import caller_of, services_of
from runtimed.core.errors import MethodNotAllowed
from runtimed.wire import snapshots as wire
from runtimed.wire.strict import Empty

router = APIRouter(prefix="/v1", tags=["snapshots"])


@router.post("/sandboxes/{sandbox_id}:snapshot", response_model=wire.Snapshot)
async def take(request: Request, sandbox_id: str, body: wire.TakeSnapshot | None = None) -> Response:
    """Keep its memory or its disk, to begin others from; it goes on as it was."""
    services, caller = services_of(request), caller_of(request)
    spec = (body or wire.TakeSnapshot.model_validate({})).spec()

    async def work(_: KeyedRequest) -> Answer:
        record = await services.snapshots.take(caller, sandbox_id, spec, wait_s=prefer_wait_s(request))
        note(request, snapshot=record.id, mode=record.mode)
        return Answer(status=201, body=wire.snapshot_body(record))

    return await answer_once(request, work)


@router.get("/snapshots", response_model=wire.SnapshotPageShown)
async def page(request: Request, query: Annotated[wire.SnapshotQuery, Query()]) -> Response:
    """Snapshots, oldest first."""
    services = services_of(request)
    found = await services.snapshots.page(caller_of(request), query.wanted(), limit=query.limit, cursor=query.cursor)
    data = [wire.snapshot_body(record) for record in found.records]
    return json_response(200, {"data": data, "nextCursor": found.next_cursor})


@router.get("/snapshots/{snapshot_id}", response_model=wire.Snapshot)
async def get(request: Request, snapshot_id: str) -> Response:
    """One snapshot."""
    if ":" in snapshot_id:
        raise MethodNotAllowed(f"GET cannot be done to {request.url.path}")
    record = await services_of(request).snapshots.get(caller_of(request), snapshot_id)
    return json_response(200, wire.snapshot_body(record))


@router.post("/snapshots/{snapshot_id}:update", response_model=wire.Snapshot)
async def update(request: Request, snapshot_id: str, body: wire.UpdateSnapshot) -> Response:
    """Change its name or labels; with `ifLabels` only while its labels are those."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        note(request, target=snapshot_id)
        record = await services.snapshots.update(caller, snapshot_id, body.change())
        return Answer(status=200, body=wire.snapshot_body(record))

    return await answer_once(request, work)


@router.post("/snapshots/{snapshot_id}:extend", response_model=wire.Snapshot)
async def extend(request: Request, snapshot_id: str, body: wire.ExtendSnapshot) -> Response:
    """Keep it for so many days from now."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        note(request, target=snapshot_id)
        record = await services.snapshots.extend(caller, snapshot_id, body.retention_days)
        return Answer(status=200, body=wire.snapshot_body(record))

    return await answer_once(request, work)


@router.post("/snapshots/{snapshot_id}:delete", response_model=wire.Snapshot)
async def delete(request: Request, snapshot_id: str, body: Empty | None = None) -> Response:
    """Remove it. What began from it keeps what it needs."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        note(request, target=snapshot_id)
        record = await services.snapshots.delete(caller, snapshot_id)
        return Answer(status=200, body=wire.snapshot_body(record))

    return await answer_once(request, work)
