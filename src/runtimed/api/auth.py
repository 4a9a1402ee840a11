"""Decides who sent a request and whether their key may do such a thing, before its body is read."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtimed.api.envelope import error_response
from runtimed.core.clock import Clock
from runtimed.core.errors import Forbidden, RuntimedError, Unauthorized
from runtimed.core.sandbox import Caller
from runtimed.core.tasks import spawn
from runtimed.store.accounts import Accounts

KNOWN_FOR_S = 0.5
"""A key is believed this long without asking the store; a revoked one must be refused within a second."""
RECHECK_S = 0.4
"""How often the key of an answer that is still under way is looked at again."""
_KNOWN_MAX = 10_000

_PUBLIC = frozenset({"/healthz", "/v1/openapi.json"})
_log = logging.getLogger(__name__)
_INSIDE = re.compile(r"/v1/sandboxes/[^/]+/(?!receipt$)")
"""Files, processes and whatever else is inside a sandbox: a read-only key sees only what is outside, as its receipt."""


@dataclass(frozen=True)
class _Known:
    caller: Caller
    until_s: float


class _Watch:
    """Cancels a task once its key is refused; looks for the first time when most requests have long been answered."""

    def __init__(self, ask: Callable[[], Awaitable[Caller]], task: asyncio.Task[object]) -> None:
        self.refused: Unauthorized | None = None
        self._ask, self._task = ask, task
        self._looking: asyncio.Task[None] | None = None
        self._begin = asyncio.get_running_loop().call_later(RECHECK_S, self._look)

    def end(self) -> None:
        """Idempotent."""
        self._begin.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _look(self) -> None:
        self._looking = spawn(self._look_on(), name="look at the key of a long answer")

    async def _look_on(self) -> None:
        while True:
            try:
                await self._ask()
            except Unauthorized as refused:
                self.refused = refused
                self._task.cancel()
                return
            await asyncio.sleep(RECHECK_S)


class Authenticate:
    """Puts the caller into the scope of each request that needs one."""

    def __init__(self, app: ASGIApp, *, accounts: Accounts, clock: Clock) -> None:
        self._app = app
        self._accounts = accounts
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._is_open(scope):
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._recognise(Headers(scope=scope).get("authorization", ""))
            if caller.read_only:
                _check_read_only(scope)
        except RuntimedError as error:
            await error_response(error, request_id=scope.get("request_id"))(scope, receive, send)
            return
        scope["caller"] = caller
        await self._while_valid(scope, receive, send)

    async def _while_valid(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and cut an answer that is still under way when its key is revoked: a stream may last for hours."""
        answering, begun = asyncio.current_task(), False
        assert answering is not None
        watch = _Watch(lambda: self._recognise(Headers(scope=scope).get("authorization", "")), answering)

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        except asyncio.CancelledError:
            if watch.refused is None:
                raise
            answering.uncancel()
            _log.info("request %s was cut: its key is revoked", scope.get("request_id"))
            if not begun:
                await error_response(watch.refused, request_id=scope.get("request_id"))(scope, receive, send)
        finally:
            watch.end()

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        if path != "/metrics":
            return path in _PUBLIC
        # Somebody far away whom a proxy on this machine speaks for is not local.
        forwarded = any(name in Headers(scope=scope) for name in ("x-forwarded-for", "forwarded"))
        return not forwarded and (scope.get("client") or ("",))[0] in ("127.0.0.1", "::1")

    async def _recognise(self, header: str) -> Caller:
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized(
                "this needs an API key", hint="send Authorization: Bearer rtcloud_...; the SDK reads RUNTIME_API_KEY"
            )
        known = self._known.get(key)
        if known is not None and self._clock.monotonic_s() < known.until_s:
            return known.caller
        self._known.pop(key, None)
        caller = await self._accounts.recognise(key)
        if caller is None:
            raise Unauthorized("this API key is unknown or revoked", hint="runtime admin key create makes a new one")
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = _Known(caller, self._clock.monotonic_s() + KNOWN_FOR_S)
        return caller


def _check_read_only(scope: Scope) -> None:
    if scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD"):
        raise Forbidden("a read-only key changes nothing", hint="use a full key")
    if _INSIDE.match(scope["path"]):
        raise Forbidden("a read-only key does not see inside a sandbox", hint="use a full key")
