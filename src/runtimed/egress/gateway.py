"""The gateway of one host: takes the streams that guests open, and lets each reach what its machine's policy allows.

A machine without a bound policy reaches nothing; a failure of the gateway itself refuses.

    machine's channel --egress.open--> GuestConnection --> server
                      --egress.dns---> Question ----> stand-in address | NXDOMAIN
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runtimed.core.clock import Clock
from runtimed.core.egress import EgressBinding, EgressRecord, Happened, Traffic
from runtimed.core.errors import HostUnavailable
from runtimed.core.ids import SandboxId
from runtimed.core.secrets import SecretRecord, host_targets
from runtimed.core.tasks import spawn
from runtimed.egress import dns
from runtimed.egress.audit import Audit
from runtimed.egress.bound import QUESTIONS_A_SECOND, Bound, EgressLimits
from runtimed.egress.ca import Authority
from runtimed.egress.connection import GuestConnection
from runtimed.egress.exchanges import Cut
from runtimed.egress.names import StandIns
from runtimed.egress.pipes import GuestPipe, PipeBroken, UsedUp
from runtimed.egress.policy import UNBOUND, Policy
from runtimed.egress.ranges import Ground
from runtimed.egress.secrets.sealing import CannotOpen, Sealer
from runtimed.egress.secrets.substitute import OpenSecret
from runtimed.egress.sockets import NoSuchName, Sockets, Unreachable
from runtimed.wire.streams import LinkLost, Stream, StreamReset

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class GatewayParts:
    """What a gateway is made of."""

    clock: Clock
    ground: Ground
    sockets: Sockets
    authority: Authority
    sealer: Sealer
    audit: Audit
    limits: EgressLimits = field(default_factory=EgressLimits)
    response_s: float = 600.0


class Gateway:
    """Implements core.egress.EgressDoor, and takes the streams of guests by `opened`."""

    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts
        self.sockets, self.authority, self.response_s = parts.sockets, parts.authority, parts.response_s
        self.ca_pem = parts.authority.pem.decode()
        self._bound: dict[SandboxId, Bound] = {}
        self._secrets: dict[str, tuple[SecretRecord, OpenSecret]] = {}

    # What the service asks.

    def bind(self, sandbox_id: SandboxId, binding: EgressBinding) -> None:
        known = self._bound.get(sandbox_id)
        if known is not None:
            known.change(binding, self._parts.ground)
            return
        salt = hashlib.blake2b(sandbox_id.encode() + os.urandom(16)).digest()
        self._bound[sandbox_id] = Bound(
            sandbox_id=sandbox_id,
            binding=binding,
            policy=Policy(binding.rules, self._parts.ground),
            limits=self._parts.limits,
            stand_ins=StandIns(salt),
        )

    def unbind(self, sandbox_id: SandboxId) -> None:
        bound = self._bound.pop(sandbox_id, None)
        for connection in list(bound.live) if bound else ():
            connection.close("the machine is gone")

    def binding(self, sandbox_id: SandboxId) -> EgressBinding | None:
        bound = self._bound.get(sandbox_id)
        return bound.binding if bound else None

    @property
    def secrets(self) -> Sequence[SecretRecord]:
        return [record for record, _ in self._secrets.values()]

    def traffic(self, sandbox_id: SandboxId) -> Traffic:
        bound = self._bound.get(sandbox_id)
        return Traffic(sent=bound.sent_bytes, moved=bound.moved_bytes) if bound else Traffic()

    def records(self, sandbox_id: SandboxId, *, after: int, limit: int) -> list[EgressRecord]:
        return self._parts.audit.of(sandbox_id, after=after, limit=limit)

    def watch(self, told: Callable[[EgressRecord], None]) -> Callable[[], None]:
        return self._parts.audit.watch(told)

    def go_on_after(self, newest: Mapping[SandboxId, int]) -> None:
        self._parts.audit.go_on_after(newest)

    def seal(self, secret_id: str, value: str) -> bytes:
        return self._parts.sealer.seal(value.encode("ascii"), purpose=secret_id)

    def put_secret(self, record: SecretRecord) -> None:
        try:
            value = self._parts.sealer.open(record.sealed, purpose=record.id).decode("ascii")
        except CannotOpen as wrong:
            raise HostUnavailable(f"the secret {record.plan.name} cannot be opened: {wrong}") from wrong
        opened = OpenSecret(
            plan=record.plan, targets=host_targets(record.plan.hosts), placeholder=record.placeholder, value=value
        )
        self._secrets[record.id] = (record, opened)

    def drop_secret(self, secret_id: str) -> None:
        self._secrets.pop(secret_id, None)

    def secrets_of(self, sandbox_id: SandboxId) -> tuple[SecretRecord, ...]:
        bound = self._bound.get(sandbox_id)
        return tuple(record for record, _ in self._usable(bound)) if bound else ()

    # What connections ask (connection.House).

    def now_s(self) -> float:
        return self._parts.clock.monotonic_s()

    def secrets_for(self, bound: Bound, host: str, port: int) -> Sequence[OpenSecret]:
        return [opened for _, opened in self._usable(bound) if opened.goes_to(host, port)]

    def record(self, bound: Bound, happened: Happened) -> None:
        self._parts.audit.write(bound.sandbox_id, happened)

    def _usable(self, bound: Bound) -> list[tuple[SecretRecord, OpenSecret]]:
        binding = bound.binding
        return [
            (record, opened)
            for record, opened in self._secrets.values()
            if record.account_id == binding.account_id
            and (binding.secrets is None or record.plan.name in binding.secrets)
        ]

    # What guests do.

    def opened(self, sandbox_id: SandboxId, stream: Stream) -> None:
        """A guest opened a stream. Never raises: what cannot be served is reset."""
        stream.carries_bytes()
        spawn(self._serve(sandbox_id, stream), name=f"egress {sandbox_id}")

    async def _serve(self, sandbox_id: SandboxId, stream: Stream) -> None:
        bound = self._bound.get(sandbox_id)
        if bound is None:
            stream.reset("forbidden", UNBOUND.rule)
            return
        try:
            if stream.method == "egress.dns":
                await self._dns(bound, stream)
            elif stream.method == "egress.open":
                await self._connection(bound, stream)
            else:
                stream.reset("unavailable", f"the host has no method {stream.method[:64]}")
        except (PipeBroken, Cut, LinkLost, StreamReset) as gone:
            _log.debug("egress %s: %s", sandbox_id, gone)
        except BaseExceptionGroup as gone:
            if gone.split((PipeBroken, Cut, LinkLost, StreamReset))[1] is not None:
                raise
        finally:
            stream.reset("forbidden", "the connection is over")

    async def _connection(self, bound: Bound, stream: Stream) -> None:
        asked, stream.params = _Asked.read(stream.params), {}  # Kept for the connection's whole life otherwise.
        pipe = GuestPipe(stream, bound.windows, bound.spend, bound.sent)
        connection = GuestConnection(self, bound, pipe)
        why = bound.why_no_more(self.now_s())
        if why is not None:
            self._limited(bound, stream, asked, why)
            return
        bound.live.add(connection)
        try:
            if asked.proxy:
                await connection.proxied()
            elif 0 < asked.port <= 65535:
                await connection.transparent(asked.host, asked.port)
            await pipe.linger()
        except* UsedUp as used:
            self._limited(bound, stream, asked, str(_only(used)))
        finally:
            bound.live.discard(connection)
            connection.finish()

    def _limited(self, bound: Bound, stream: Stream, asked: _Asked, why: str) -> None:
        if bound.tells_limit(why, self.now_s()):
            self.record(bound, Happened(what="limit", host=asked.host, port=asked.port, allowed=False, rule=why))
        stream.reset("rate_limited", why)

    async def _dns(self, bound: Bound, stream: Stream) -> None:
        if not bound.questions.take(self.now_s()):
            asked = _Asked(host="", port=53, proxy=False)
            self._limited(bound, stream, asked, f"more than {QUESTIONS_A_SECOND:g} DNS questions a second")
            return
        if bound.dns_now >= bound.limits.dns_at_once:
            stream.reset("rate_limited", "too many DNS questions at once")
            return
        bound.dns_now += 1
        try:
            question = dns.read_query(base64.b64decode(str(stream.params.get("query")), validate=True))
            answer = await self._answer(bound, question)
            await stream.send_message({"answer": base64.b64encode(answer).decode("ascii")}, last=True)
        except (dns.BadQuery, binascii.Error):
            stream.reset("invalid_request", "not a DNS question")
        finally:
            bound.dns_now -= 1

    async def _answer(self, bound: Bound, question: dns.Question) -> bytes:
        name = question.name
        if name is None:
            return dns.refused(question)
        verdict = bound.policy.judge_query(name)
        if not verdict.allowed:
            if question.wants_address:
                self._told_dns(bound, name, verdict.rule)
            return dns.refused(question)
        if not question.wants_address:
            return dns.nothing(question)
        now_s = self.now_s()
        why = bound.queries.why_not(name, wildcard=bound.policy.wildcard_of(name), now_s=now_s)
        if why is not None:
            self._told_dns(bound, name, why)
            return dns.refused(question)
        if bound.known_addresses(name, now_s) is None:
            try:
                bound.remember(name, await self.sockets.resolve(name), now_s)
            except Unreachable as failure:
                self._told_dns(bound, name, verdict.rule, failure)
                return dns.refused(question) if isinstance(failure, NoSuchName) else dns.failed(question)
        return dns.stands_for(question, bound.stand_ins.address(name))

    def _told_dns(self, bound: Bound, name: str, rule: str, failure: Unreachable | None = None) -> None:
        why = None if failure is None else str(failure)
        self.record(bound, Happened(what="dns", host=name, port=53, allowed=why is not None, rule=rule, failure=why))


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What a guest's stream asks for, as far as it can be a host and a port."""

    host: str
    port: int
    proxy: bool

    @classmethod
    def read(cls, params: Mapping[str, object]) -> _Asked:
        host, port = params.get("host"), params.get("port")
        return cls(
            host=host[:64] if isinstance(host, str) else "",
            port=port if isinstance(port, int) and 0 <= port <= 65535 else 0,
            proxy=params.get("via") == "proxy",
        )


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One failure of a group, whatever it is nested in."""
    first = group.exceptions[0]
    return _only(first) if isinstance(first, BaseExceptionGroup) else first
