"""Carries the HTTP requests of one connection, one after the other, each judged by the rules of its moment.

read head --unreadable--> 400, close
          --refused-----> 403 with the rule, close
          --allowed-----> connect where needed --> head, body out  ||  answer in --> next
                                                   (at the same time; 101 makes it a plain tunnel)
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtimed.core.egress import Happened
from runtimed.egress import answers, pages
from runtimed.egress.answers import GuardedAnswer, PlainAnswer
from runtimed.egress.http1 import (
    BadMessage,
    Body,
    End,
    RequestHead,
    RequestReader,
    ResponseHead,
    ResponseReader,
    has_body,
    request_bytes,
)
from runtimed.egress.pipes import Pipe, PipeBroken, ServerBroken, WithFirst, pump
from runtimed.egress.policy import Policy
from runtimed.egress.requests import Judged, Route, Unreadable, judge_request, route_of_proxied
from runtimed.egress.secrets import sigv4, substitute
from runtimed.egress.secrets.guard import CannotLook, Guard, SecretFound
from runtimed.egress.secrets.substitute import OpenSecret
from runtimed.egress.sockets import Unreachable, UpstreamPipe

SIGNED_BODY_MAX_BYTES = 4 << 20
"""A body that is hashed for a signature is held whole."""
HEAD_WITHIN_S = 60.0
"""From the first byte of a request to the end of its headers."""


class Refused(Exception):
    """The connection's rules refuse the host; the text is the rule."""


class Cut(Exception):
    """The answer had begun and must not go on."""


class TooMuch(Exception):
    """The sandbox makes the gateway hold more than it may; the text is the limit."""


class TooSlow(Exception):
    """The request's head did not come to its end."""


class Surroundings(Protocol):
    """What one connection knows of the sandbox it belongs to."""

    def policy(self) -> Policy: ...

    def secrets(self, route: Route) -> Sequence[OpenSecret]:
        """Those that go to this host, with their values of now. Empty unless the connection is intercepted."""

    async def connect(self, route: Route) -> UpstreamPipe:
        """Raises Refused, Unreachable."""

    async def tunnel(self, route: Route, client: Pipe) -> None:
        """A CONNECT that was read from `client`: answer it and carry what follows."""

    def record(self, happened: Happened) -> None: ...

    def hold(self, size: int) -> None:
        """Bytes of a body are kept in memory; a negative size gives them back. Raises TooMuch, and counts them."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How the requests come: to a proxy, or on a connection that was made for one host."""

    asked: Route | None
    """None for a proxy: each request says where it goes."""
    intercepted: bool = False
    response_s: float = 600.0
    """How long a server may think before its answer begins."""
    head_s: float = HEAD_WITHIN_S


@dataclass(frozen=True)
class _Outgoing:
    """A request as it goes out; with a `body`, that was read already."""

    head: RequestHead
    body: bytes | None


class Exchanges:
    """All requests of one connection."""

    def __init__(self, client: Pipe, around: Surroundings, manner: Manner) -> None:
        self._client, self._around, self._manner = client, around, manner
        self._requests, self._responses = RequestReader(), ResponseReader()
        self._server: UpstreamPipe | None = None
        self._server_is: Route | None = None
        self._held = 0

    async def run(self, server: UpstreamPipe | None = None) -> None:
        """Until the client ends, or something ends the connection. Raises PipeBroken, Cut."""
        self._server, self._server_is = server, self._manner.asked if server else None
        try:
            while (head := await self._next()) is not None:
                if not await self._one(head):
                    break
            await self._client.end()
        except BadMessage as wrong:
            self._unreadable(self._manner.asked, wrong)
            await self._end_with(400, f"the request cannot be read: {wrong}")
        except TooSlow:
            await self._end_with(408, f"the request's headers did not end in {self._manner.head_s:g} s")
        finally:
            if self._server is not None:
                self._server.abort()

    async def _next(self) -> RequestHead | None:
        """The next request; None when the client ends. A connection may idle, a request may not dawdle."""
        try:
            async with asyncio.timeout(None) as within:
                while (head := self._requests.head()) is None:
                    if self._requests.buffered and within.when() is None:
                        within.reschedule(asyncio.get_running_loop().time() + self._manner.head_s)
                    data = await self._client.read()
                    if not data:
                        return None
                    self._requests.feed(data)
                return head
        except TimeoutError:
            raise TooSlow from None

    async def _end_with(self, status: int, text: str, *, rule: str | None = None, method: bytes = b"GET") -> None:
        await self._client.write(pages.page(status, text, rule=rule, method=method))
        await self._client.end()

    async def _one(self, head: RequestHead) -> bool:
        """One request and its answer. Whether another may follow."""
        route: Route | None = None
        try:
            route = self._manner.asked or route_of_proxied(head)
            if self._manner.asked is None and head.method == b"CONNECT":
                await self._around.tunnel(route, WithFirst(self._requests.rest(), self._client))
                return False
            judged = judge_request(head, route, self._around.policy(), exact=self._manner.intercepted)
            if not judged.verdict.allowed:
                self._told(route, judged, allowed=False)
                raise Refused(judged.verdict.rule)
            return await self._allowed(route, judged)
        except Unreadable as wrong:
            self._unreadable(route, wrong)
            await self._end_with(400, f"the request cannot be judged: {wrong}", method=head.method)
        except Refused as refused:
            shown = f"{route.host}:{route.port}" if route else "the host"
            await self._end_with(403, f"{shown} is refused: {refused}", rule=str(refused), method=head.method)
        except sigv4.CannotSign as wrong:
            await self._end_with(403, f"the request cannot be signed again: {wrong}", method=head.method)
        except TooMuch as much:
            await self._end_with(429, str(much), method=head.method)
        except Unreachable as failure:
            await self._end_with(failure.status, str(failure), method=head.method)
        finally:
            self._around.hold(-self._held)
            self._held = 0
        return False

    async def _allowed(self, route: Route, judged: Judged) -> bool:
        secrets = self._around.secrets(route)
        head, body = judged.head, None
        used: tuple[OpenSecret, ...] = ()
        guard: Guard | None = None
        if secrets:
            digest = None
            if sigv4.needs_body_hash(head):
                body, digest = await self._whole_body()
            applied = substitute.apply(head, secrets, body_sha256=digest, changed=answers.readable_only(head))
            head, used = applied.head, applied.used
            guard = Guard(applied.watched, [secret.watched for secret in secrets])
        self._told(route, judged, allowed=True, secrets=used)
        server = await self._connected(route)
        answer = GuardedAnswer(guard, head) if guard is not None else PlainAnswer()
        try:
            return await self._exchange(server, _Outgoing(head, body), answer)
        except Unreachable as failure:
            self._told(route, judged, allowed=True, failure=str(failure))
            raise

    async def _connected(self, route: Route) -> UpstreamPipe:
        # Bytes that came unasked would be taken for the next answer.
        stale = self._server is None or self._server.gone or self._responses.buffered
        if self._server is None or self._server_is != route or stale:
            if self._server is not None:
                self._server.abort()
            self._server, self._responses = None, ResponseReader()
            self._server = await self._around.connect(route)
            self._server_is = route
        return self._server

    async def _exchange(self, server: UpstreamPipe, outgoing: _Outgoing, answer: PlainAnswer | GuardedAnswer) -> bool:
        sending: asyncio.Task[None] | None = None
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send(server, outgoing))
                lasts = await self._answer(server, outgoing.head, answer, sending.done)
                if not sending.done():
                    sending.cancel()  # The server answered without wanting the rest; the connection cannot go on.
                    lasts = False
            return lasts
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from None

    async def _send(self, server: UpstreamPipe, outgoing: _Outgoing) -> None:
        try:
            await server.write(request_bytes(outgoing.head))
            if outgoing.body is not None:
                await server.write(outgoing.body)
                return
            async for event in _Events(self._requests.body_event, self._requests.feed, self._client.read, None):
                if isinstance(event, Body):
                    await server.write(event.raw)
        except ServerBroken:
            return  # It may have answered before it hung up; the answer's side tells.

    async def _whole_body(self) -> tuple[bytes, str]:
        """The body as it is on the wire, and the hash of its content."""
        raw, content = bytearray(), hashlib.sha256()
        async for event in _Events(self._requests.body_event, self._requests.feed, self._client.read, None):
            if isinstance(event, Body):
                self._around.hold(len(event.raw))
                self._held += len(event.raw)
                raw += event.raw
                content.update(event.content)
                if len(raw) > SIGNED_BODY_MAX_BYTES:
                    raise sigv4.CannotSign(f"a body of more than {SIGNED_BODY_MAX_BYTES} bytes without its hash")
        return bytes(raw), content.hexdigest()

    async def _answer(
        self,
        server: UpstreamPipe,
        request: RequestHead,
        answer: PlainAnswer | GuardedAnswer,
        sent: Callable[[], bool],
    ) -> bool:
        begun = False
        try:
            while True:
                response = await self._response_head(server, request, sent)
                data = answer.head(response)
                begun = response.status >= 200
                await self._client.write(data)
                if response.status == 101:
                    if not sent() and has_body(request):
                        raise BadMessage("it switches protocols in the middle of a request")
                    await self._switched(server, request, answer)
                    return False
                async for event in _Events(
                    self._responses.body_event, self._responses.feed, server.read, self._responses.close
                ):
                    for piece in answer.body(event) if begun else ():
                        if piece:
                            await self._client.write(piece)
                if begun:
                    return answers.lasts(request, response)
        except (SecretFound, CannotLook) as held:
            why = "held a secret's value" if isinstance(held, SecretFound) else f"cannot be looked into ({held})"
            self._noticed(why)
            if begun:
                raise Cut(f"the answer {why}") from None
            raise Unreachable(f"the server's answer {why} and was cut") from None
        except (BadMessage, ServerBroken) as wrong:
            if begun:
                raise Cut(f"the server's answer broke off: {wrong}") from wrong
            raise Unreachable(f"the server's answer cannot be read: {wrong}") from wrong

    async def _response_head(
        self, server: UpstreamPipe, request: RequestHead, sent: Callable[[], bool]
    ) -> ResponseHead:
        while True:
            response = self._responses.head(request.method)
            if response is not None:
                return response
            try:
                async with asyncio.timeout(self._manner.response_s):
                    data = await server.read()
            except TimeoutError:
                if not sent():
                    continue
                text = f"the server did not answer in {self._manner.response_s:g} s"
                raise Unreachable(text, status=504) from None
            if not data:
                raise BadMessage("the server hung up without an answer")
            self._responses.feed(data)

    async def _switched(self, server: UpstreamPipe, request: RequestHead, answer: PlainAnswer | GuardedAnswer) -> None:
        """The connection is a tunnel now. A WebSocket's frames from the server are not masked: the guard reads them."""
        if not request.all(b"upgrade"):
            raise BadMessage("it switches protocols unasked")
        guarded = (answer.raw, answer.raw_ends) if isinstance(answer, GuardedAnswer) else ()
        client = WithFirst(self._requests.rest(), self._client)
        begin = WithFirst(self._responses.rest(), server)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pump(client, server))
                group.create_task(pump(begin, self._client, *guarded))
        except BaseExceptionGroup as failures:
            raise _first(failures) from None

    def _told(
        self,
        route: Route,
        judged: Judged,
        *,
        allowed: bool,
        secrets: Sequence[OpenSecret] = (),
        failure: str | None = None,
    ) -> None:
        self._around.record(
            Happened(
                what="request",
                host=str(route.host),
                port=route.port,
                allowed=allowed,
                rule=judged.verdict.rule,
                secrets=tuple(secret.plan.name for secret in secrets),
                failure=failure,
            )
        )

    def _unreadable(self, route: Route | None, wrong: Exception) -> None:
        if route is not None:
            rule = f"a request that cannot be read in one way: {wrong}"
            self._around.record(
                Happened(what="request", host=str(route.host), port=route.port, allowed=False, rule=rule)
            )

    def _noticed(self, why: str) -> None:
        route = self._server_is
        if route is not None:
            self._around.record(
                Happened(what="secret", host=str(route.host), port=route.port, allowed=False, rule=f"the answer {why}")
            )


class _Events:
    """The events of one body, reading more bytes where they are needed."""

    def __init__(
        self,
        event: Callable[[], Body | End | None],
        feed: Callable[[bytes], None],
        read: Callable[[], object],
        close: Callable[[], None] | None,
    ) -> None:
        self._event, self._feed, self._read, self._close = event, feed, read, close
        self._over = False

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> Body | End:
        if self._over:
            raise StopAsyncIteration
        while (event := self._event()) is None:
            data = await self._read()  # type: ignore[misc]
            if data:
                self._feed(data)
            elif self._close is not None:
                self._close()
            else:
                raise PipeBroken("the client went away in the middle of a body")
        self._over = isinstance(event, End)
        return event


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that matters of a group: a group of one kind is told as its first."""
    for failure in group.exceptions:
        if not isinstance(failure, asyncio.CancelledError):
            return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure
    return group.exceptions[0]
