"""For those who run the service: is it up, and how busy is it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtimed import VERSION
from runtimed.api.envelope import json_response
from runtimed.api.services import services_of

router = APIRouter(tags=["operator"])


@router.get("/healthz")
async def healthz() -> Response:
    """Whether this process answers. Needs no key and touches nothing."""
    return json_response(200, {"status": "ok", "version": VERSION})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus. From this machine it needs no key."""
    text = services_of(request).metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
