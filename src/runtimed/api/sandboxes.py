"""The sandbox resource: create, read, list, delete, and the verbs that change its life."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once, not_built, prefer_wait_s
from runtimed.api.auditing import note
from runtimed.api.envelope import json_response
from runtimed.api.idempotency import Answer, KeyedRequest
from runtimed.api.services import Services, caller_of, services_of
from runtimed.core.errors import InvalidRequest, MethodNotAllowed
from runtimed.core.lifecycle import State
from runtimed.core.sandbox import SandboxRecord
from runtimed.wire import sandboxes as wire
from runtimed.wire.strict import Empty

WAIT_FOR_MAX_S = 110
"""A long poll is answered before the public client gives up on its headers, after 125 s."""

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])


async def shown(services: Services, record: SandboxRecord) -> dict[str, object]:
    """A sandbox as an answer has it."""
    money = await services.accounting.money([record.id])
    body = wire.sandbox_body(record, region=services.region, money=money.get(record.id))
    return body | {"progress": services.sandboxes.doing(record)}


@router.post("", response_model=wire.Sandbox)
async def create(request: Request, body: wire.CreateSandbox) -> Response:
    """Start a sandbox. `Prefer: wait=N` holds the answer until it runs."""
    services, caller = services_of(request), caller_of(request)
    if body.region not in (None, services.region):
        raise InvalidRequest([{"field": "region", "message": f"the only region is {services.region!r}"}])
    if missing := body.not_built():
        raise not_built(", ".join(missing), missing)
    spec = body.spec(default_image=services.default_image)

    async def work(_: KeyedRequest) -> Answer:
        record, reused = await services.sandboxes.create(caller, spec, wait_s=prefer_wait_s(request))
        note(request, target=record.id, image=record.image, vcpu=record.shape.vcpu, memoryMiB=record.shape.memory_mib)
        more = {"reused": True} if reused else {}
        return Answer(status=200 if reused else 201, body=await shown(services, record) | more)

    return await answer_once(request, work)


@router.get("", response_model=wire.SandboxPage)
async def page(request: Request, query: Annotated[wire.ListQuery, Query()]) -> Response:
    """Sandboxes, oldest first; stopped ones only when asked for."""
    services = services_of(request)
    found = await services.sandboxes.page(caller_of(request), query.wanted(), limit=query.limit, cursor=query.cursor)
    money = await services.accounting.money([record.id for record in found.records])
    data = [wire.sandbox_body(r, region=services.region, money=money.get(r.id)) for r in found.records]
    return json_response(200, {"data": data, "nextCursor": found.next_cursor})


@router.get("/{sandbox_id}", response_model=wire.Sandbox)
async def get(
    request: Request,
    sandbox_id: str,
    wait_for: Annotated[State | None, Query(alias="waitFor")] = None,
    timeout_s: Annotated[int, Query(alias="timeoutSeconds", ge=0)] = 60,
) -> Response:
    """One sandbox; with `waitFor`, once it is in that state or `timeoutSeconds` are over."""
    services, caller = services_of(request), caller_of(request)
    if ":" in sandbox_id:
        raise MethodNotAllowed(f"GET cannot be done to {request.url.path}")
    if wait_for is None:
        record = await services.sandboxes.get(caller, sandbox_id)
    else:
        within_s = min(timeout_s, WAIT_FOR_MAX_S)
        record = await services.sandboxes.wait_for(caller, sandbox_id, wait_for, within_s=within_s)
    return json_response(200, await shown(services, record))


@router.delete("/{sandbox_id}", response_model=wire.Deleted)
async def delete(request: Request, sandbox_id: str) -> Response:
    """End it in whatever state it is, and forget it."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        record = await services.sandboxes.delete(caller, sandbox_id)
        return Answer(status=200, body=wire.deleted_body(record))

    return await answer_once(request, work)


@router.post("/{sandbox_id}:stop", response_model=wire.Sandbox)
async def stop(request: Request, sandbox_id: str, body: Empty | None = None) -> Response:
    """End its machine and its disk; its record stays."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        record = await services.sandboxes.stop(caller, sandbox_id, wait_s=prefer_wait_s(request))
        return Answer(status=200, body=await shown(services, record))

    return await answer_once(request, work)


@router.post("/{sandbox_id}:extend", response_model=wire.Sandbox)
async def extend(request: Request, sandbox_id: str, body: wire.Extend) -> Response:
    """Move the end of its lease later, at most a day ahead of now."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        record = await services.sandboxes.extend(caller, sandbox_id, body.seconds)
        return Answer(status=200, body=await shown(services, record))

    return await answer_once(request, work)


@router.post("/{sandbox_id}:update", response_model=wire.Sandbox)
async def update(request: Request, sandbox_id: str, body: wire.UpdateSandbox) -> Response:
    """Change its name, labels, environment, default user, or what happens at the end of its lease."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        record = await services.sandboxes.update(caller, sandbox_id, body.change())
        return Answer(status=200, body=await shown(services, record))

    return await answer_once(request, work)


@router.post("/{sandbox_id}:retention", response_model=wire.Sandbox)
async def retention(request: Request, sandbox_id: str, body: wire.Retention) -> Response:
    """How many days it is kept once it is paused or stopped."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        record = await services.sandboxes.retain(caller, sandbox_id, body.days)
        return Answer(status=200, body=await shown(services, record))

    return await answer_once(request, work)
