"""One connection of a guest, from the stream it comes on to the server: judged, resolved, checked, dialled, carried.

tcp (an address) --stands for a name, or is one--+
proxy (CONNECT or http://) ----------------------+--judge--> resolve --judge each address--> dial
                                                                                              |
         Pass: bytes untouched  <--  Http: each request judged  <--  Intercept: TLS, secrets  <-- first bytes
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from runtimed.core.egress import Happened
from runtimed.core.network import Address, read_host
from runtimed.core.tasks import spawn
from runtimed.egress import pages, tls
from runtimed.egress.bound import HELD_MAX_BYTES, Bound
from runtimed.egress.ca import Authority
from runtimed.egress.exchanges import Exchanges, Manner, Refused, TooMuch
from runtimed.egress.http1 import FirstLine, is_request
from runtimed.egress.names import POOL
from runtimed.egress.opening import Asked, Decision, Http, Intercept, Opening, Pass, Refuse
from runtimed.egress.pipes import GuestPipe, Pipe, PipeBroken, TlsServerPipe, WithFirst, pump
from runtimed.egress.policy import Policy, Ruling
from runtimed.egress.requests import Route
from runtimed.egress.secrets.substitute import OpenSecret
from runtimed.egress.sockets import Sockets, Unreachable, UpstreamPipe, is_own

HANDSHAKE_WITHIN_S = 30.0
REFUSED_WAITS_S = 2.0
"""How long a refused client may take to show its protocol, so that it can be refused in its own terms."""


class House(Protocol):
    """What the gateway gives to each connection."""

    sockets: Sockets
    authority: Authority
    response_s: float

    def now_s(self) -> float:
        """Monotonic."""

    def secrets_for(self, bound: Bound, host: str, port: int) -> Sequence[OpenSecret]: ...

    def record(self, bound: Bound, happened: Happened) -> None: ...


class GuestConnection:
    """Lives as long as the guest's stream. `close` ends it from outside, for rules that changed."""

    def __init__(self, house: House, bound: Bound, pipe: GuestPipe) -> None:
        self._house, self._bound, self._pipe = house, bound, pipe
        self._task = asyncio.current_task()
        self._reached: list[tuple[Route, Address]] = []
        self._shown_name: str | None = None
        self._dialled: UpstreamPipe | None = None
        self._intercepted = False
        self._closed_by: str | None = None
        self._rule = ""

    async def proxied(self) -> None:
        """The guest's program speaks to a proxy. Raises PipeBroken, Cut."""
        await Exchanges(self._pipe, self, Manner(asked=None, response_s=self._house.response_s)).run()

    async def transparent(self, host: str, port: int) -> None:
        """The guest's program connected to an address and knows nothing of us. Raises PipeBroken, Cut."""
        try:
            address = read_host(host)
        except ValueError:
            address = ""
        if isinstance(address, str):
            raise PipeBroken("the guest named no address")
        route = Route(host=address, port=port)
        try:
            if address in POOL:
                name = self._bound.stand_ins.name(address)
                if name is None:
                    rule = "the address stands for no name (any more); look the name up again"
                    self._refused(route, rule)
                    raise Refused(rule)
                route = Route(host=name, port=port)
            server = await self.connect(route)
        except (Refused, Unreachable) as refused:
            await self._refuse_in_kind(route, refused)
            return
        await self._carry(route, server, self._pipe)

    # What the requests of this connection ask (exchanges.Surroundings).

    def policy(self) -> Policy:
        return self._bound.policy

    def secrets(self, route: Route) -> Sequence[OpenSecret]:
        if not self._intercepted or not isinstance(route.host, str):
            return ()
        return self._house.secrets_for(self._bound, route.host, route.port)

    def record(self, happened: Happened) -> None:
        self._house.record(self._bound, happened)

    def hold(self, size: int) -> None:
        if size > 0 and self._bound.held_bytes + size > HELD_MAX_BYTES:
            raise TooMuch(
                f"more than {HELD_MAX_BYTES >> 20} MiB of bodies of this sandbox wait to be signed; send fewer"
            )
        self._bound.held_bytes += size

    async def tunnel(self, route: Route, client: Pipe) -> None:
        server = await self.connect(route)
        await client.write(pages.ESTABLISHED)
        await self._carry(route, server, client)

    async def connect(self, route: Route) -> UpstreamPipe:
        """Judge, resolve, judge what was found, dial that, and speak TLS with it where we intercept."""
        try:
            return await self._connected(route)
        except Unreachable as failure:
            self._failed(route, failure)
            raise

    async def _connected(self, route: Route) -> UpstreamPipe:
        server, self._dialled = self._dialled, None
        if server is None or server.gone:
            server = await self._dial(route)
        if self._intercepted:
            try:
                await server.start_tls(self._house.sockets.tls, str(route.host))
            except BaseException:
                server.abort()
                raise
        return server

    async def _dial(self, route: Route) -> UpstreamPipe:
        policy = self._bound.policy
        verdict = policy.judge(route.host, route.port)
        if not verdict.allowed:
            self._refused(route, verdict.rule)
            raise Refused(verdict.rule)
        addresses = await self._addresses(route)
        verdicts = [(address, self._judge_address(policy, route, address)) for address in addresses]
        allowed = [address for address, judged in verdicts if judged.allowed]
        if not allowed:
            rule = verdicts[0][1].rule
            self._refused(route, rule, verdicts[0][0])
            raise Refused(rule)
        server = await self._house.sockets.dial(allowed, route.port)
        self._reached.append((route, server.address))
        self._rule = verdict.rule
        now = self._bound.policy  # The rules may have changed meanwhile.
        late = self.why_not(now)
        if late is not None:
            server.abort()
            self._refused(route, late.rule, server.address)
            raise Refused(late.rule)
        self._tell(route, "connection", verdict.rule, server.address)
        return server

    async def _addresses(self, route: Route) -> list[Address]:
        if not isinstance(route.host, str):
            return [route.host]
        now_s = self._house.now_s()
        known = self._bound.known_addresses(route.host, now_s)
        if known is not None:
            return known
        found = await self._house.sockets.resolve(route.host)
        self._bound.remember(route.host, found, now_s)
        return found

    @staticmethod
    def _judge_address(policy: Policy, route: Route, address: Address) -> Ruling:
        verdict = policy.judge_address(route.host, address, route.port)
        opened = any(address in network for network in policy.ground.open_ranges)
        if verdict.allowed and not opened and is_own(address):
            return Ruling(allowed=False, rule="the host's own addresses are always refused")
        return verdict

    # Rules that changed.

    def why_not(self, policy: Policy) -> Ruling | None:
        for route, address in self._reached:
            for verdict in (
                policy.judge(route.host, route.port),
                policy.judge_address(route.host, address, route.port),
                *([policy.judge(self._shown_name, route.port)] if self._shown_name not in (None, route.host) else []),
            ):
                if not verdict.allowed:
                    return verdict
        return None

    def close(self, why: str) -> None:
        self._closed_by = why
        for route, address in self._reached[-1:]:
            self._refused(route, why, address)
        if self._task is not None:
            self._task.cancel()

    def finish(self) -> None:
        """The stream is over, however it went."""
        if self._dialled is not None:
            self._dialled.abort()
        self._pipe.reset(self._closed_by or "the connection is over")
        self._pipe.release()
        for route, address in self._reached[-1:]:
            self._tell(route, "closed", self._closed_by or self._rule, address)

    # Carrying.

    async def _carry(self, route: Route, server: UpstreamPipe, client: Pipe) -> None:
        """Everything after the connection stands."""
        self._dialled = server
        opening = Opening(
            self._bound.policy,
            Asked(host=route.host, port=route.port),
            lambda host, port: bool(self._house.secrets_for(self._bound, host, port)),
        )
        first, spoken, decision = await self._first_bytes(opening, server, client)
        self._shown_name = opening.shown_name.lower().removesuffix(".") if opening.shown_name else None
        began = WithFirst(first, client)
        if isinstance(decision, Refuse):
            self._refused(route, decision.verdict.rule, server.address)
            if decision.kind == "tls":
                await client.write(tls.NAME_NOT_AGREED)
                await client.end()
        elif isinstance(decision, Pass):
            through = self._until_clear(route, server.address) if decision.open else None
            await self._pass(began, WithFirst(spoken, server), through)
        elif spoken:
            self._refused(route, "the server speaks before a request", server.address)
        elif isinstance(decision, Http):
            self._dialled = None
            await Exchanges(began, self, Manner(asked=route, response_s=self._house.response_s)).run(server)
        else:
            await self._intercept(decision, route, began)

    async def _intercept(self, decision: Intercept, route: Route, client: Pipe) -> None:
        speaks = TlsServerPipe(self._house.authority.context(decision.name), client)
        try:
            async with asyncio.timeout(HANDSHAKE_WITHIN_S):
                await speaks.handshake()
        except TimeoutError:
            raise PipeBroken(f"the client did not finish a TLS handshake in {HANDSHAKE_WITHIN_S:g} s") from None
        self._intercepted = True
        manner = Manner(asked=route, intercepted=True, response_s=self._house.response_s)
        await Exchanges(speaks, self, manner).run()

    def _until_clear(self, route: Route, address: Address) -> Callable[[bytes], bytes]:
        """Lets bytes pass until they turn out to be an HTTP request, which nobody has judged."""
        line = FirstLine()

        def through(data: bytes) -> bytes:
            if line.take(data):
                rule = "an HTTP request that does not begin as one; it cannot be judged"
                self._refused(route, rule, address)
                raise PipeBroken(rule)
            return data

        return through

    async def _pass(self, client: Pipe, server: Pipe, through: Callable[[bytes], bytes] | None = None) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(pump(client, server, through))
            group.create_task(pump(server, client))
        if self._dialled is not None:
            self._dialled.close()
            self._dialled = None

    async def _first_bytes(self, opening: Opening, server: UpstreamPipe, client: Pipe) -> tuple[bytes, bytes, Decision]:
        """What the client sent and the server said until it was clear what this is. A cancelled read loses nothing."""
        data = b""
        from_server = spawn(_outcome(server), name="egress-first-server")
        from_client = spawn(_outcome(client), name="egress-first-client")
        try:
            while True:
                await asyncio.wait({from_client, from_server}, return_when=asyncio.FIRST_COMPLETED)
                if not from_client.done():
                    return data, _bytes_of(await from_server), Pass(kind="other", open=True)
                chunk = _bytes_of(await from_client)
                data += chunk
                decision = opening.first_bytes(data, ended=not chunk)
                if decision is not None:
                    return data, _bytes_of(await from_server) if from_server.done() else b"", decision
                from_client = spawn(_outcome(client), name="egress-first-client")
        finally:
            for task in (from_client, from_server):
                task.cancel()
            await asyncio.wait({from_client, from_server})  # A pipe has one reader at a time.

    async def _refuse_in_kind(self, route: Route, refused: Refused | Unreachable) -> None:
        """Tell a program that does not know of us why, in the protocol it begins to speak; else by a reset."""
        try:
            async with asyncio.timeout(REFUSED_WAITS_S):
                data = await self._pipe.read()
        except TimeoutError:
            data = b""
        if tls.looks_like_tls(data):
            await self._pipe.write(tls.ACCESS_DENIED)
            await self._pipe.end()
        elif data and is_request(data):
            if isinstance(refused, Refused):
                text = f"{route.host}:{route.port} is refused: {refused}"
                answer = pages.page(403, text, rule=str(refused))
            else:
                answer = pages.page(refused.status, str(refused))
            await self._pipe.write(answer)
            await self._pipe.end()

    # Records.

    def _refused(self, route: Route, rule: str, address: Address | None = None) -> None:
        at = str(address) if address is not None and isinstance(route.host, str) else None
        self.record(
            Happened(what="connection", host=str(route.host), port=route.port, allowed=False, rule=rule, address=at)
        )

    def _failed(self, route: Route, failure: Unreachable) -> None:
        verdict = self._bound.policy.judge(route.host, route.port)
        self.record(
            Happened(
                what="connection",
                host=str(route.host),
                port=route.port,
                allowed=verdict.allowed,
                rule=verdict.rule,
                failure=str(failure),
            )
        )

    def _tell(self, route: Route, what: str, rule: str, address: Address) -> None:
        closed = what == "closed"
        self.record(
            Happened(
                what="closed" if closed else "connection",
                host=str(route.host),
                port=route.port,
                allowed=True,
                rule=rule,
                address=str(address),
                bytes_out=self._pipe.bytes_out if closed else 0,
                bytes_in=self._pipe.bytes_in if closed else 0,
            )
        )


async def _outcome(pipe: Pipe) -> bytes | PipeBroken:
    """A read whose failure is a value: nobody may be there to take it."""
    try:
        return await pipe.read()
    except PipeBroken as broken:
        return broken


def _bytes_of(outcome: bytes | PipeBroken) -> bytes:
    if isinstance(outcome, PipeBroken):
        raise outcome
    return outcome
