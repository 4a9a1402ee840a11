"""The outermost layer of every request: its id, its line in the log, its place in the metrics, its last safety net."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtimed.api.envelope import error_response, internal_error
from runtimed.api.metrics import Metrics
from runtimed.core.clock import Clock
from runtimed.core.errors import HostUnavailable, RuntimedError, TooLarge
from runtimed.core.ids import new_id
from runtimed.core.limits import BODY_MAX_BYTES

_ENCODED_SLASH = re.compile(rb"%2[fF]")
_log = logging.getLogger("runtimed.access")


class Outermost:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, clock: Clock, closing: asyncio.Event) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = scope["request_id"] = new_id()
        scope["path"] = routed_path(scope)
        if scope["type"] == "websocket":
            _log.info("WebSocket request=%s", request_id)
            await self._app(scope, receive, send)
            return
        began_s = self._clock.monotonic_s()
        status = 0

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            if self._closing.is_set():
                await error_response(_closing(), request_id=request_id)(scope, receive, send_marked)
                return
            _check_length(scope)
            await self._app(scope, _Bounded(receive), send_marked)
        except (BodyTooLarge, ClientDisconnect) as error:
            if not status and isinstance(error, BodyTooLarge):
                await error_response(error, request_id=request_id)(scope, receive, send_marked)
        except Exception as failure:  # noqa: BLE001 - the one boundary: whatever went wrong, the client learns the id and no more
            _log.exception("request %s failed", request_id)
            if not status:
                told = _refusal(failure) or internal_error()
                await error_response(told, request_id=request_id)(scope, receive, send_marked)
            # A body that was begun stays without its end, so that the client sees that it is cut.
        finally:
            self._note(scope, status, self._clock.monotonic_s() - began_s)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        # The pattern, never the path: no ids in the metrics, no file names in the log.
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.answered(method=scope["method"], route=route, status=status, seconds=seconds)
        caller: Any = scope.get("caller")
        _log.info(
            "%s %s %s %.1f ms request=%s key=%s sandbox=%s",
            scope["method"],
            route,
            status or "none",
            seconds * 1000,
            scope["request_id"],
            caller.key_id if caller else "-",
            scope.get("path_params", {}).get("sandbox_id", "-"),
        )


def _refusal(failure: Exception) -> RuntimedError | None:
    """What was refused behind the routes, where an answer is noted: wrapped when a route had answered."""
    return next((one for one in (failure, failure.__cause__) if isinstance(one, RuntimedError)), None)


def routed_path(scope: Scope) -> str:
    """The path that routes are looked up by: decoded, except that a slash which came encoded stays so.

    Servers decode everything, and an id with a slash in it would then be two parts of the path, and another route.
    """
    raw = scope.get("raw_path")
    if not raw:
        return str(scope["path"])
    return "%2F".join(unquote(part.decode("ascii", "replace")) for part in _ENCODED_SLASH.split(raw))


class BodyTooLarge(TooLarge):
    """A request body over the limit; raised out of `receive`, where the route reads it."""


class _Bounded:
    """A `receive` that counts the body."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > BODY_MAX_BYTES:
                raise _too_large()
        return message


def _closing() -> HostUnavailable:
    return HostUnavailable("the service is stopping", hint="ask again once it runs")


def _check_length(scope: Scope) -> None:
    said = Headers(scope=scope).get("content-length", "0")
    if said.isdigit() and int(said) > BODY_MAX_BYTES:
        raise _too_large()


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {BODY_MAX_BYTES} bytes", hint="upload large files in chunks: POST uploads"
    )
