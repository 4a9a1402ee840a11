"""Notes every change with who, when, from where and its request's id, and counts every request of a key.

A change of what the service itself keeps is in the chain before its answer leaves. What happens inside a sandbox
(commands, files) is written together with others a moment after its answer, since each would wait for a disk.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtimed.core.audit import AuditEvent, AuditLine, Detail, Problem
from runtimed.core.clock import Clock
from runtimed.core.commands import Command
from runtimed.core.ids import AccountId
from runtimed.core.sandbox import Caller
from runtimed.core.tasks import spawn
from runtimed.store.audit import HOUR_S, AuditQuery, AuditStore, OperationCount, RequestCounts

WRITE_AFTER_S = 0.25
"""Events of commands and files wait this long for others, so that one write to the disk serves many."""
PROGRAM_MAX_CHARS = 64
WAITING_MAX = 10_000
"""Events in memory; where the disk takes none for so long, the service has no business going on quietly."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_INSIDE = re.compile(r"/v1/sandboxes/\{sandbox_id\}(/|:exec)")
_ACTIONS = {
    "POST /v1/sandboxes": "sandbox.create",
    "DELETE /v1/sandboxes/{sandbox_id}": "sandbox.delete",
    "POST /v1/sandboxes/{sandbox_id}:exec": "command.run",
    "POST /v1/sandboxes/{sandbox_id}/processes": "process.spawn",
    "PUT /v1/sandboxes/{sandbox_id}/network": "network.set",
    "PUT /v1/sandboxes/{sandbox_id}/files/content": "file.write",
    "PUT /v1/sandboxes/{sandbox_id}/files/archive": "folder.write",
    "POST /v1/sandboxes/{sandbox_id}/uploads": "upload.begin",
    "PUT /v1/sandboxes/{sandbox_id}/uploads/{upload_id}": "upload.write",
    "POST /v1/sandboxes/{sandbox_id}/files/archive/uploads": "upload.begin",
    "PUT /v1/sandboxes/{sandbox_id}/files/archive/uploads/{upload_id}": "upload.write",
    "PUT /v1/egress-secrets/{name}": "secret.set",
    "DELETE /v1/egress-secrets/{name}": "secret.delete",
}
_VERB = re.compile(r"POST /v1/(?:[\w{}/-]*/)?(sandbox|snapshot|process|upload|file)(?:e?s(?:/\{\w+\})?):([\w-]+)")

_log = logging.getLogger(__name__)


@dataclass
class Noted:
    """What a route adds to the line of its own request."""

    target: str = ""
    details: dict[str, Detail] = field(default_factory=dict)
    over: bool = False
    """What was asked for is over, though its answer is not sent to the end yet."""


def note(request: Request, *, target: str | None = None, **details: Detail) -> None:
    """Say what this request is done to, or how it went: never an argument, a value or a secret."""
    noted = request.scope.setdefault("noted", Noted())
    if target is not None:
        noted.target = target
    noted.details.update(details)


def note_over(request: Request, **details: Detail) -> None:
    """Say how it went, before the part of a stream is sent that tells the client: who asks then sees it."""
    noted = request.scope.setdefault("noted", Noted())
    noted.details.update(details)
    noted.over = True


def program_of(command: Command) -> str:
    """The program's name and nothing else of a command: whatever follows it may be a secret."""
    return PurePosixPath(command.argv[0]).name[:PROGRAM_MAX_CHARS]


class Auditor:
    """Writes the chain and the counts of one service."""

    def __init__(self, audit: AuditStore, counts: RequestCounts, clock: Clock) -> None:
        self._audit = audit
        self._counts = counts
        self._clock = clock
        self._waiting: list[AuditEvent] = []
        self._asked: Counter[tuple[AccountId, int, str]] = Counter()
        self._failed: Counter[tuple[AccountId, int, str]] = Counter()
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    async def add(self, event: AuditEvent) -> None:
        """Append; when this returns the line is in the chain."""
        self._waiting.append(event)
        await self.flush()

    def later(self, event: AuditEvent) -> None:
        """Append with others, in a moment."""
        self._waiting.append(event)
        self._wake()

    def asked(self, account_id: AccountId, operation: str, *, failed: bool) -> None:
        """Count a request."""
        place = (account_id, int(self._clock.now_s() // HOUR_S), operation)
        self._asked[place] += 1
        self._failed[place] += failed
        self._wake()

    async def flush(self) -> None:
        """Write what waits. Everybody who waits meanwhile is served by one write."""
        async with self._writing:
            events, self._waiting = self._waiting, []
            try:
                await self._audit.append(events)
            except BaseException:
                self._waiting = (events + self._waiting)[:WAITING_MAX]
                raise

    async def close(self) -> None:
        """Write everything. Idempotent."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.wait({self._writer})
            self._writer = None
        await self.flush()
        await self._write_counts()

    async def page(self, wanted: AuditQuery) -> list[AuditLine]:
        """Newest first, with what was noted until now."""
        await self.flush()
        return await self._audit.page(wanted)

    async def problems(self) -> list[Problem]:
        """Where the chain is not what was written."""
        await self.flush()
        return await self._audit.verify()

    async def length(self) -> int:
        """Lines of the chain."""
        return await self._audit.length()

    async def operations(self, account_id: AccountId, *, since_s: float) -> list[OperationCount]:
        await self._write_counts()
        return await self._counts.shown(account_id, since_s=since_s)

    def _wake(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = spawn(self._write_soon(), name="write audit lines")

    async def _write_soon(self) -> None:
        await asyncio.sleep(WRITE_AFTER_S)
        await self.flush()
        await self._write_counts()

    async def _write_counts(self) -> None:
        asked, self._asked = self._asked, Counter()
        failed, self._failed = self._failed, Counter()
        await self._counts.add({place: (count, failed[place]) for place, count in asked.items()})


class Audited:
    """The layer around the routes, inside of the one that knows the caller."""

    def __init__(self, app: ASGIApp, *, auditor: Auditor, clock: Clock) -> None:
        self._app = app
        self._auditor = auditor
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller | None = scope.get("caller")
        if scope["type"] != "http" or caller is None:
            await self._app(scope, receive, send)
            return
        began_s = self._clock.monotonic_s()
        at_ms = int(self._clock.now_s() * 1000)
        status, replayed, told = 0, False, False

        def tell() -> None:
            """Once, before the client can know that it is over and ask."""
            nonlocal told
            operation = _operation(scope)
            if told or operation is None:
                return
            told = True
            self._auditor.asked(caller.account_id, operation, failed=status == 0 or status >= 400)
            if _changes(scope) and not replayed and _inside(scope):
                duration_ms = int((self._clock.monotonic_s() - began_s) * 1000)
                self._auditor.later(_event(scope, caller, at_ms=at_ms, status=status, durationMs=duration_ms))

        async def send_noted(message: Message) -> None:
            nonlocal status, replayed
            if message["type"] == "http.response.start":
                status = message["status"]
                replayed = Headers(raw=message["headers"]).get("idempotency-replayed") == "true"
                if _changes(scope) and not replayed and not _inside(scope):
                    await self._auditor.add(_event(scope, caller, at_ms=at_ms, status=status))
            elif not message.get("more_body") or _over(scope):
                tell()
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            tell()


def _event(scope: Scope, caller: Caller, *, at_ms: int, status: int, **details: Detail) -> AuditEvent:
    noted = scope.get("noted") or Noted()
    client: tuple[str, int] | None = scope.get("client")
    return AuditEvent(
        at_ms=at_ms,
        account_id=caller.account_id,
        action=_action(scope),
        target=(noted.target or str(_path_params(scope).get("sandbox_id", "")))[:128],
        actor=f"key:{caller.key_id}",
        address=client[0] if client else "",
        request_id=str(scope.get("request_id", "")),
        outcome="done" if 200 <= status < 400 else f"refused {status}" if status else "cut",
        details={**noted.details, **details},
    )


def _over(scope: Scope) -> bool:
    noted: Noted | None = scope.get("noted")
    return noted is not None and noted.over


def _changes(scope: Scope) -> bool:
    return scope["method"] not in _READING and _operation(scope) is not None


def _operation(scope: Scope) -> str | None:
    """Method and pattern of the route; None where there was none."""
    pattern = getattr(scope.get("route"), "path", None)
    return None if pattern is None else f"{scope['method']} {pattern}"


def _inside(scope: Scope) -> bool:
    return _INSIDE.match(getattr(scope.get("route"), "path", "")) is not None


def _action(scope: Scope) -> str:
    """A name that stays; a route without one is named by itself, so that no new one is ever left out."""
    operation = _operation(scope) or ""
    if operation in _ACTIONS:
        return _ACTIONS[operation]
    if verb := _VERB.fullmatch(operation):
        return f"{verb[1]}.{verb[2]}"
    return operation.replace("/v1/", "").replace("sandboxes/{sandbox_id}/", "")[:64]


def _path_params(scope: Scope) -> Mapping[str, Any]:
    params: Mapping[str, Any] = scope.get("path_params", {})
    return params
