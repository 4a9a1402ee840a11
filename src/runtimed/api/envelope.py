"""Turns errors into the one shape that every refusal has; tells nothing internal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from runtimed.core.errors import InvalidRequest, MethodNotAllowed, RouteNotFound, RuntimedError, ServiceError
from runtimed.wire.strict import issues

_UNKNOWN_VERB = re.compile(r":[^/]*$")
"""`POST /v1/sandboxes/ID:nonsense` also fits the route that reads a sandbox, for which POST is a wrong method."""


def error_body(error: RuntimedError, *, request_id: str | None) -> dict[str, object]:
    """The value of `error`: also used inside streams and late answers, where there is no status line any more."""
    body: dict[str, object] = {"code": error.code, "message": error.message, "status": error.status}
    for name, value in (
        ("hint", error.hint),
        ("details", error.details or None),
        ("requestId", request_id),
        ("retryAfterMs", error.retry_after_ms),
        ("retryable", error.retryable),
    ):
        if value is not None:
            body[name] = value
    return body


def json_response(status: int, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        json.dumps(body, separators=(",", ":")).encode(), status, dict(headers or {}), media_type="application/json"
    )


def error_response(error: RuntimedError, *, request_id: str | None) -> Response:
    headers = {}
    if error.retry_after_ms is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_ms / 1000)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(error.status, {"error": error_body(error, request_id=request_id)}, headers)


def internal_error() -> RuntimedError:
    """For a defect of ours: the log has the rest, under the request's id."""
    return RuntimedError("the service has a fault", hint="tell your operator the request id; the service's log has it")


def request_id_of(request: Request) -> str | None:
    found = request.scope.get("request_id")
    return found if isinstance(found, str) else None


async def on_runtimed_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RuntimedError)
    if isinstance(error, ServiceError):
        request.app.state.services.metrics.failed(error.code)
    return error_response(error, request_id=request_id_of(request))


async def on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(InvalidRequest(issues(error.errors())), request_id=request_id_of(request))


async def on_http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    shown: RuntimedError
    if isinstance(error.__cause__, RuntimedError):
        shown = error.__cause__  # FastAPI wraps what is raised while it reads a body
    elif error.status_code == 405 and not _UNKNOWN_VERB.search(path):
        shown = MethodNotAllowed(f"{request.method} cannot be done to {path}")
    elif error.status_code in (404, 405):
        shown = RouteNotFound(f"there is nothing at {path}", hint="/v1/openapi.json lists what there is")
    else:
        shown = InvalidRequest([{"field": "body", "message": "is not JSON in UTF-8: send one object"}])
    return error_response(shown, request_id=request_id_of(request))


async def on_defect(request: Request, error: Exception) -> Response:
    return error_response(internal_error(), request_id=request_id_of(request))
