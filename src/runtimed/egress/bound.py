"""What the gateway keeps of one machine: its policy, its names, its open connections, and how much it has used."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from runtimed.core.egress import EgressBinding
from runtimed.core.ids import SandboxId
from runtimed.core.network import Address
from runtimed.egress.names import QueryLimit, StandIns
from runtimed.egress.pipes import UsedUp, Windows
from runtimed.egress.policy import Policy, Ruling
from runtimed.egress.ranges import Ground

ADDRESSES_FOR_S = 30.0
"""How long a name's addresses are remembered: as long as the guest may remember the one that stands for it."""
ADDRESSES_MAX = 1024
HELD_MAX_BYTES = 16 << 20
"""Of bodies that wait to be signed, in one sandbox."""
QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE = 200.0, 800
"""DNS questions of any kind, refused ones too: each costs the service an answer and often a record."""
LIMIT_TOLD_EVERY_S = 1.0
"""A guest that runs against a limit makes no more records of it than this."""


@dataclass(frozen=True, kw_only=True)
class EgressLimits:
    """For each sandbox. Beyond them a connection is refused with a clear answer."""

    connections: int = 480
    """At once; the channel carries 512 streams of a guest in all, some of which are DNS."""
    new_a_second: float = 100.0
    new_at_once: int = 300
    bytes_total: int = 0
    """In both directions, for its whole life; 0 is no limit."""
    dns_at_once: int = 64


class Rate:
    """A bucket of tokens: so many at once, so many a second."""

    def __init__(self, a_second: float, at_once: int) -> None:
        self._a_second, self._at_once = a_second, at_once
        self._tokens, self._at_s = float(at_once), 0.0

    def take(self, now_s: float) -> bool:
        """Whether there was one."""
        self._tokens = min(self._at_once, self._tokens + (now_s - self._at_s) * self._a_second)
        self._at_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class OpenConnection(Protocol):
    """A connection that new rules may close."""

    def why_not(self, policy: Policy) -> Ruling | None:
        """The verdict by which `policy` refuses it, or None."""

    def close(self, why: str) -> None: ...


@dataclass(kw_only=True)
class Bound:
    """One machine. Mutable, owned by the gateway's event loop."""

    sandbox_id: SandboxId
    binding: EgressBinding
    policy: Policy
    limits: EgressLimits
    stand_ins: StandIns
    queries: QueryLimit = field(default_factory=QueryLimit)
    questions: Rate = field(default_factory=lambda: Rate(QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE))
    windows: Windows = field(default_factory=Windows)
    live: set[OpenConnection] = field(default_factory=set)
    spent_bytes: int = 0
    """Of all its connections, as they move."""
    sent_bytes: int = 0
    """The part of them that came from the guest."""
    dns_now: int = 0
    held_bytes: int = 0
    _tokens: float = -1.0
    _at_s: float = 0.0
    _addresses: OrderedDict[str, tuple[float, list[Address]]] = field(default_factory=OrderedDict)
    _limit_told: dict[str, float] = field(default_factory=dict)

    def change(self, binding: EgressBinding, ground: Ground) -> None:
        """Take new rules, and close what they refuse."""
        self.binding, self.policy = binding, Policy(binding.rules, ground)
        for connection in list(self.live):
            if (verdict := connection.why_not(self.policy)) is not None:
                connection.close(verdict.rule)

    @property
    def moved_bytes(self) -> int:
        """What went over its connections until now, those that are open included."""
        return self.spent_bytes

    def spend(self, size: int) -> None:
        """Count bytes as they move. Raises UsedUp once there were more than the limit, also in the middle."""
        self.spent_bytes += size
        if self.limits.bytes_total and self.spent_bytes > self.limits.bytes_total:
            raise UsedUp(f"more than {self.limits.bytes_total} bytes in all")

    def sent(self, size: int) -> None:
        """Count bytes that come from the guest, as they come."""
        self.sent_bytes += size

    def tells_limit(self, why: str, now_s: float) -> bool:
        """Whether this limit is to be recorded once more."""
        if now_s - self._limit_told.get(why, -LIMIT_TOLD_EVERY_S) < LIMIT_TOLD_EVERY_S:
            return False
        self._limit_told[why] = now_s
        return True

    def why_no_more(self, now_s: float) -> str | None:
        """The limit that another connection would pass, or None; counts it as begun."""
        limits = self.limits
        if len(self.live) >= limits.connections:
            return f"more than {limits.connections} connections at once"
        if limits.bytes_total and self.spent_bytes >= limits.bytes_total:
            return f"more than {limits.bytes_total} bytes in all"
        if self._tokens < 0:
            self._tokens = float(limits.new_at_once)
        self._tokens = min(limits.new_at_once, self._tokens + (now_s - self._at_s) * limits.new_a_second)
        self._at_s = now_s
        if self._tokens < 1:
            return f"more than {limits.new_a_second:g} new connections a second"
        self._tokens -= 1
        return None

    def known_addresses(self, name: str, now_s: float) -> list[Address] | None:
        found = self._addresses.get(name)
        return found[1] if found is not None and found[0] > now_s else None

    def remember(self, name: str, addresses: list[Address], now_s: float) -> None:
        self._addresses[name] = (now_s + ADDRESSES_FOR_S, addresses)
        self._addresses.move_to_end(name)
        if len(self._addresses) > ADDRESSES_MAX:
            self._addresses.popitem(last=False)
