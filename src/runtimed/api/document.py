"""The OpenAPI document: what FastAPI sees in the routes, and what it cannot see."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from runtimed.core.errors import every_error

_PUBLIC = ("/healthz", "/metrics", "/v1/openapi.json")
_RAW = {"type": "string", "format": "binary"}
_RAW_BODIES = ("files/content", "files/archive", "/uploads/{upload_id}")
"""Routes whose PUT takes bytes as they are."""
_STREAMS = {
    ("get", "files/content"): "application/octet-stream",
    ("get", "files/archive"): "application/gzip",
    ("get", "/output"): "application/x-ndjson",
    ("post", ":exec"): "application/x-ndjson",
}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Made once for an application."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Error"] = _error_schema()
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _complete(path, method, operation)
        app.openapi_schema = document
    return app.openapi_schema


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    # A wrong field is a 400 in our envelope, not FastAPI's 422.
    responses.pop("422", None)
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses["default"] = {"description": "Any refusal.", "content": error}
    if path in _PUBLIC:
        operation["security"] = []
    if method == "put" and path.endswith(_RAW_BODIES):
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": _RAW}}}
    for (verb, end), media_type in _STREAMS.items():
        if method == verb and path.endswith(end):
            responses["200"].setdefault("content", {})[media_type] = {"schema": _RAW}
    if method != "get":
        operation.setdefault("parameters", []).append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "A repeat within 24 hours answers the first answer, or joins the first while it runs.",
                "schema": {"type": "string", "maxLength": 128},
            }
        )


def _error_schema() -> dict[str, Any]:
    text = {"type": "string"}
    fields: dict[str, Any] = {
        "code": {"type": "string", "enum": sorted(every_error()), "description": "Stable; match on it."},
        "message": {"type": "string", "description": "For people; it may change."},
        "status": {"type": "integer"},
        "hint": text,
        "details": {"type": "object", "description": "With `issues`, the list of every wrong field."},
        "requestId": text,
        "retryAfterMs": {"type": "integer"},
        "retryable": {"type": "boolean"},
    }
    error = {"type": "object", "required": ["code", "message", "status"], "properties": fields}
    return {"type": "object", "required": ["error"], "properties": {"error": error}}
