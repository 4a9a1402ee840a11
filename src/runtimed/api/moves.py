"""What is done with a sandbox's memory and disk: pause, wake, restart, fork, and the receipts of its starts."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once, prefer_wait_s
from runtimed.api.auditing import note
from runtimed.api.envelope import json_response
from runtimed.api.idempotency import Answer, KeyedRequest
from runtimed.api.sandboxes import shown
from runtimed.api.services import caller_of, services_of
from runtimed.wire import sandboxes as wire
from runtimed.wire.snapshots import snapshot_body
from runtimed.wire.strict import Empty

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])


@router.post("/{sandbox_id}:pause", response_model=wire.Sandbox)
async def pause(request: Request, sandbox_id: str, body: Empty | None = None) -> Response:
    """Keep memory and files, and run no more. `Prefer: wait=N` holds the answer until the vCPUs have stopped."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        record = await services.moves.pause(caller, sandbox_id, wait_s=prefer_wait_s(request))
        return Answer(status=200, body=await shown(services, record))

    return await answer_once(request, work)


@router.post("/{sandbox_id}:wake", response_model=wire.Sandbox)
async def wake(request: Request, sandbox_id: str, body: wire.Wake | None = None) -> Response:
    """Go on after a pause, under a new lease. One that is awake answers 409 `not_paused`."""
    services, caller = services_of(request), caller_of(request)
    lease_s = body.timeout_s if body else None

    async def work(_: KeyedRequest) -> Answer:
        record = await services.moves.wake(caller, sandbox_id, lease_s=lease_s, wait_s=prefer_wait_s(request))
        return Answer(status=200, body=await shown(services, record))

    return await answer_once(request, work)


@router.post("/{sandbox_id}:restart", response_model=wire.Sandbox)
async def restart(request: Request, sandbox_id: str, body: Empty | None = None) -> Response:
    """Boot a stopped sandbox from the disk that was kept of it; of a paused one this gives up the memory."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        record = await services.moves.restart(caller, sandbox_id, wait_s=prefer_wait_s(request))
        return Answer(status=200, body=await shown(services, record))

    return await answer_once(request, work)


@router.post("/{sandbox_id}:fork", response_model=wire.Forked)
async def fork(request: Request, sandbox_id: str, body: wire.Fork | None = None) -> Response:
    """Copy a running sandbox with memory, processes and disk: all copies start, or none does. It goes on."""
    services, caller = services_of(request), caller_of(request)
    spec = (body or wire.Fork.model_validate({})).spec()

    async def work(_: KeyedRequest) -> Answer:
        made = await services.forks.fork(caller, sandbox_id, spec)
        note(request, copies=len(made.sandboxes), first=made.sandboxes[0].id)
        answer: dict[str, object] = {"sandboxes": [await shown(services, copy) for copy in made.sandboxes]}
        if made.snapshot is not None:
            answer["snapshot"] = snapshot_body(made.snapshot)
        return Answer(status=201, body=answer)

    return await answer_once(request, work)


@router.get("/{sandbox_id}/starts", response_model=wire.StartList)
async def starts(request: Request, sandbox_id: str) -> Response:
    """How each of its machines came up: served from what, when each step was done, what was checked. Oldest first."""
    found = await services_of(request).moves.starts(caller_of(request), sandbox_id)
    return json_response(200, {"data": [wire.start_body(start) for start in found]})
