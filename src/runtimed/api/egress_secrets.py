"""Secrets that sandboxes use without seeing them: values come in, names and placeholders go out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.answering import answer_once, not_built
from runtimed.api.envelope import json_response
from runtimed.api.idempotency import Answer, KeyedRequest
from runtimed.api.services import caller_of, services_of
from runtimed.wire import egress as wire

router = APIRouter(prefix="/v1/egress-secrets", tags=["secrets"])


@router.get("", response_model=wire.SecretPage)
async def page(
    request: Request,
    after: Annotated[str, Query(max_length=128)] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 100,
) -> Response:
    """Secrets by name; never a value."""
    services, caller = services_of(request), caller_of(request)
    found, more = await services.secrets.page(caller.account_id, after=after, limit=limit)
    body = {"secrets": [wire.secret_body(r) for r in found], "next": found[-1].plan.name if more else None}
    return json_response(200, body)


@router.put("/{name}", response_model=wire.SecretShown)
async def put(request: Request, name: str, body: wire.PutSecret) -> Response:
    """Store or replace one. A new value counts from the next request of a running sandbox on."""
    services, caller = services_of(request), caller_of(request)
    if missing := body.not_built():
        raise not_built(", ".join(missing), missing)

    async def work(_: KeyedRequest) -> Answer:
        record = await services.secrets.put(caller.account_id, body.plan(name), body.value)
        await services.sandboxes.secrets_changed(caller.account_id)
        return Answer(status=200, body=wire.secret_body(record))

    return await answer_once(request, work)


@router.delete("/{name}")
async def delete(request: Request, name: str) -> Response:
    """Erase one; its placeholder stops working at once."""
    services, caller = services_of(request), caller_of(request)

    async def work(_: KeyedRequest) -> Answer:
        await services.secrets.delete(caller.account_id, name)
        await services.sandboxes.secrets_changed(caller.account_id)
        return Answer(status=200, body={"name": name, "deleted": True, "enforced": True})

    return await answer_once(request, work)
