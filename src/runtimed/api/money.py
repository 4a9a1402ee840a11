"""What a key may read of money: its limits, its usage, how often it asked, and each sandbox's receipt."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.envelope import json_response
from runtimed.api.services import Services, caller_of, services_of
from runtimed.core.clock import iso
from runtimed.core.errors import InvalidRequest
from runtimed.wire import money as wire

REPORT_DEFAULT_S = 30 * 86_400
REPORT_MAX_S = 400 * 86_400

router = APIRouter(prefix="/v1", tags=["money"])


@router.get("/limits", response_model=wire.LimitsAnswer)
async def limits(request: Request) -> Response:
    """What bounds this key and its account now: money over 24 hours, trial, credit, sandboxes at once."""
    caller = caller_of(request)
    return json_response(200, wire.limits_body(caller, await services_of(request).accounting.limits(caller)))


@router.get("/usage", response_model=wire.UsageAnswer)
async def usage(request: Request, query: Annotated[wire.UsageWindow, Query()]) -> Response:
    """What was used and spent in a time; without one, in the last 30 days."""
    services, caller = services_of(request), caller_of(request)
    since_s, until_s = _window(services, query)
    shown = await services.accounting.usage(caller, since_s=since_s, until_s=until_s)
    return json_response(200, wire.usage_body(shown, await services.accounting.limits(caller)))


@router.get("/usage/export", response_model=wire.ExportAnswer)
async def export(request: Request, query: Annotated[wire.ExportQuery, Query()]) -> Response:
    """Everything that was counted in a time, oldest first, as data and as CSV."""
    services, caller = services_of(request), caller_of(request)
    since_s, until_s = _window(services, query)
    page = await services.accounting.export(
        caller, since_s=since_s, until_s=until_s, limit=query.limit, cursor=query.cursor
    )
    return json_response(200, wire.export_body(page, since_s=since_s, until_s=until_s, first=query.cursor is None))


@router.get("/usage/requests", response_model=wire.RequestsAnswer)
async def requests(request: Request, query: Annotated[wire.RequestsQuery, Query()]) -> Response:
    """How often the account asked for each operation, and how often it was refused."""
    services, caller = services_of(request), caller_of(request)
    since_s = services.clock.now_s() - query.seconds
    counts = await services.auditor.operations(caller.account_id, since_s=since_s)
    answered, failed = sum(c.answered for c in counts), sum(c.failed for c in counts)
    return json_response(
        200,
        {
            "range": query.range,
            "since": iso(since_s),
            "requests": str(answered),
            "failed": str(failed),
            "errorPercent": round(100 * failed / answered, 2) if answered else 0.0,
            "operations": [
                {"operation": c.operation, "requests": str(c.answered), "failed": str(c.failed)} for c in counts
            ],
        },
    )


@router.get("/sandboxes/{sandbox_id}/receipt", response_model=wire.ReceiptAnswer)
async def receipt(request: Request, sandbox_id: str) -> Response:
    """What a sandbox cost so far, line by line, and the share of its time that it waited; also of a deleted one."""
    services = services_of(request)
    record = await services.sandboxes.get(caller_of(request), sandbox_id, deleted_too=True)
    return json_response(200, wire.receipt_body(record.id, await services.accounting.receipt(record)))


def _window(services: Services, query: wire.UsageWindow) -> tuple[float, float]:
    """From when until when. Raises InvalidRequest naming the field."""
    # The end is no part of the time, and what was counted this moment is.
    until_s = services.clock.now_s() + 1 if query.until is None else wire.moment_s(query.until)
    since_s = until_s - REPORT_DEFAULT_S if query.since is None else wire.moment_s(query.since)
    if since_s >= until_s:
        raise InvalidRequest([{"field": "since", "message": "must be before until"}])
    if until_s - since_s > REPORT_MAX_S:
        raise InvalidRequest(
            [{"field": "since", "message": f"is more than {REPORT_MAX_S // 86_400} days before until"}]
        )
    return since_s, until_s
