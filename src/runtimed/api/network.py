"""What a sandbox may reach, and what became of every connection that it tried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once
from runtimed.api.envelope import json_response
from runtimed.api.idempotency import Answer, KeyedRequest
from runtimed.api.ndjson import MEDIA_TYPE, line
from runtimed.api.services import Services, caller_of, services_of
from runtimed.api.streaming import Streamed
from runtimed.core.egress import EgressRecord
from runtimed.core.ids import SandboxId
from runtimed.core.sandbox import SandboxRecord
from runtimed.wire import egress as wire

FOLLOW_MAX_S = 110.0
"""A stream of records ends with a cursor before anything in between would cut it."""
QUEUED_MAX = 10_000

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["network"])


def _shown(services: Services, record: SandboxRecord) -> dict[str, object]:
    enforced = services.egress.binding(record.id) is not None
    return wire.network_body(record, enforced=enforced, forbidden_ports=services.forbidden_ports)


@router.get("/network", response_model=wire.NetworkShown)
async def get_network(request: Request, sandbox_id: str) -> Response:
    """Its rules, as they are now."""
    services = services_of(request)
    record = await services.sandboxes.get(caller_of(request), sandbox_id)
    return json_response(200, _shown(services, record))


@router.put("/network", response_model=wire.NetworkShown)
async def set_network(request: Request, sandbox_id: str, body: wire.NetworkRules) -> Response:
    """Replace its rules, at once; open connections that the new ones refuse are closed."""
    services, caller = services_of(request), caller_of(request)
    rules = body.read()

    async def work(_: KeyedRequest) -> Answer:
        record = await services.sandboxes.set_network(caller, sandbox_id, rules)
        return Answer(status=200, body=_shown(services, record))

    return await answer_once(request, work)


@router.get("/egress", response_model=wire.EgressPage)
async def records(
    request: Request,
    sandbox_id: str,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=wire.RECORDS_LIMIT)] = 100,
    follow: bool = False,
) -> Response:
    """Verdicts on its connections, oldest first; with `follow`, one JSON line each as they come."""
    services = services_of(request)
    record = await services.sandboxes.get(caller_of(request), sandbox_id)
    if follow:
        return Streamed(_follow(services, record.id, after), media_type=MEDIA_TYPE, heartbeat=b"\n")
    found = await services.egress_records.page(record.id, after=after, limit=limit)
    newest = found[-1].sequence if found else after
    return json_response(200, {"data": [wire.record_body(r) for r in found], "nextAfter": newest})


async def _follow(services: Services, sandbox_id: SandboxId, after: int) -> AsyncGenerator[bytes]:
    queue: asyncio.Queue[EgressRecord] = asyncio.Queue(QUEUED_MAX)

    def told(record: EgressRecord) -> None:
        if record.sandbox_id == sandbox_id and not queue.full():
            queue.put_nowait(record)

    stop = services.egress.watch(told)
    try:
        while found := await services.egress_records.page(sandbox_id, after=after, limit=wire.RECORDS_LIMIT):
            for record in found:
                yield line(wire.record_body(record))
                after = record.sequence
        async with asyncio.timeout(FOLLOW_MAX_S):
            while True:
                record = await queue.get()
                if record.sequence > after:
                    yield line(wire.record_body(record))
                    after = record.sequence
    except TimeoutError:
        yield line({"continue": True, "after": after})
    finally:
        stop()
