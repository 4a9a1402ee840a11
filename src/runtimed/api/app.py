"""Puts the application together: routes, layers, error shapes, the OpenAPI document."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from runtimed import VERSION
from runtimed.api import (
    account,
    archives,
    audit,
    egress_secrets,
    envelope,
    exec,
    files,
    money,
    moves,
    network,
    not_built,
    operator,
    processes,
    sandboxes,
    snapshots,
    uploads,
)
from runtimed.api.auditing import Audited
from runtimed.api.auth import Authenticate
from runtimed.api.document import openapi_document
from runtimed.api.outermost import Outermost
from runtimed.api.services import Services
from runtimed.core.clock import Clock
from runtimed.core.errors import RuntimedError


def build_app(services: Services, clock: Clock) -> ASGIApp:
    """The whole application, ready to be served."""
    app = routes()
    app.state.services = services
    app.state.archive_flows = {}
    noted = Audited(app, auditor=services.auditor, clock=clock)
    inner = Authenticate(noted, accounts=services.accounts, clock=clock)
    return Outermost(inner, metrics=services.metrics, clock=clock, closing=services.closing)


def routes() -> FastAPI:
    """The routes alone: enough for the OpenAPI document."""
    app = FastAPI(
        title="Runtime",
        version=VERSION,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(RuntimedError, envelope.on_runtimed_error)
    app.add_exception_handler(RequestValidationError, envelope.on_validation_error)
    app.add_exception_handler(HTTPException, envelope.on_http_error)
    app.add_exception_handler(Exception, envelope.on_defect)
    inside = (sandboxes, moves, snapshots, network, exec, processes, files, uploads, archives)
    for module in (*inside, egress_secrets, account, money, audit, operator, not_built):
        app.include_router(module.router)
    app.openapi = lambda: openapi_document(app)  # type: ignore[method-assign]  # FastAPI's own way to change the document
    return app
