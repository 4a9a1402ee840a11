"""Who is asking."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtimed.api.envelope import json_response
from runtimed.api.services import caller_of, services_of

router = APIRouter(prefix="/v1", tags=["account"])


@router.get("/me")
async def me(request: Request) -> Response:
    """The account and key of this request."""
    services, caller = services_of(request), caller_of(request)
    return json_response(
        200,
        {
            "orgId": caller.account_id,
            "orgName": await services.accounts.account_name(caller.account_id),
            "principalId": caller.key_id,
            "credentialId": caller.key_id,
            "role": "read" if caller.read_only else "full",
        },
    )
