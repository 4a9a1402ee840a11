"""The audit log as its account reads it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.envelope import json_response
from runtimed.api.services import caller_of, services_of
from runtimed.store.audit import AuditQuery
from runtimed.wire import money as wire

router = APIRouter(prefix="/v1", tags=["audit"])


@router.get("/audit", response_model=wire.AuditAnswer)
async def audit(request: Request, query: Annotated[wire.AuditPageQuery, Query()]) -> Response:
    """Every change of the account, newest first; a key that is not account-wide reads its own."""
    caller = caller_of(request)
    lines = await services_of(request).auditor.page(
        AuditQuery(
            account_id=caller.account_id,
            actor=None if caller.account_wide else f"key:{caller.key_id}",
            action=query.action,
            before=query.before,
            limit=query.limit,
        )
    )
    return json_response(200, wire.audit_body(lines, limit=query.limit))


@router.get("/audit/verify", response_model=wire.AuditChecked)
async def verify(request: Request) -> Response:
    """Whether every line of the service's chain is as it was written. Says where it is not, never what a line says."""
    auditor = services_of(request).auditor
    problems = await auditor.problems()
    return json_response(200, wire.checked_body(problems, lines=await auditor.length()))
