"""Decides whether a sandbox may reach a host: rules in, a verdict with the rule that decided out. Opens nothing.

A name is judged before anybody is asked for its addresses; each address is judged before it is dialled:

    judge(name, port) --allowed--> resolve --> judge_address(name, address, port) --allowed--> dial that address
"""

from __future__ import annotations

from dataclasses import dataclass

from runtimed.core.network import Address, EgressRules, Host, Target
from runtimed.egress.ranges import Ground


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """`rule` is shown to whoever was refused: the rule as written, or what no rule can change."""

    allowed: bool
    rule: str


def _yes(rule: str) -> Ruling:
    return Ruling(allowed=True, rule=rule)


def _no(rule: str) -> Ruling:
    return Ruling(allowed=False, rule=rule)


UNBOUND = _no("this machine has no network policy")
NOT_ALLOWED = "not in allow"


class Policy:
    """The rules of one sandbox over the operator's ground. Immutable: a change is a new policy."""

    def __init__(self, rules: EgressRules, ground: Ground) -> None:
        self.rules, self.ground = rules, ground

    def judge(self, host: Host, port: int) -> Ruling:
        """A name, or an address that was asked for as such. An allowed name's addresses are still to be judged."""
        if not self.rules.internet:
            return _no("internet: false")
        if (why := self.ground.why_not_port(port)) is not None:
            return _no(why)
        return self._name(host, port) if isinstance(host, str) else self._raw(host, port)

    def judge_address(self, host: Host, address: Address, port: int) -> Ruling:
        """An address that `host` has. What `judge` says of the host holds too; this is no substitute for it."""
        if (why := self.ground.why_not_address(address)) is not None:
            return _no(why)
        for rule in self.rules.deny:
            if rule.covers_address(address, port):
                return _no(f"deny: {rule.text}")
        if not isinstance(host, str):
            return _yes(f"address {address}")
        allowed = self._allowed_name(host, port)
        if allowed is None:
            return _no(NOT_ALLOWED)
        if allowed.network is not None and not any(r.covers_address(address, port) for r in self._allow()):
            return _no(NOT_ALLOWED)  # The name came in by the range of all addresses of the other IP version.
        return _yes(f"allow: {allowed.text}")

    def judge_query(self, name: str) -> Ruling:
        """Whether a name may be looked up: when some port of it may be reached."""
        ports = {rule.port for rule in (*self._allow(), *self.rules.connect) if rule.port is not None}
        verdicts = [self.judge(name, port) for port in (443, 80, 65535, *sorted(ports))]
        return next((verdict for verdict in verdicts if verdict.allowed), verdicts[0])

    def wildcard_of(self, name: str) -> str | None:
        """The name under which `name` is allowed by `*.name` alone."""
        allowed = self._allowed_name(name, 443)
        return allowed.name if allowed is not None and allowed.subdomains else None

    def _name(self, name: str, port: int) -> Ruling:
        if (why := self.ground.why_not_name(name)) is not None:
            return _no(why)
        for rule in self.rules.deny:
            if rule.covers_name(name, port):
                return _no(f"deny: {rule.text}")
        if self._denies_every_address(port):
            return _no("deny: all addresses")
        if self.rules.allow is None:
            return _yes("internet: true")
        allowed = self._allowed_name(name, port)
        return _yes(f"allow: {allowed.text}") if allowed else _no(NOT_ALLOWED)

    def _raw(self, address: Address, port: int) -> Ruling:
        verdict = self.judge_address(address, address, port)
        if not verdict.allowed:
            return verdict
        if self.rules.allow is None:
            return _yes("internet: true")
        for rule in (*self._allow(), *self.rules.connect):
            if rule.covers_address(address, port):
                return _yes(f"allow: {rule.text}")
        return _no(NOT_ALLOWED)

    def _allow(self) -> tuple[Target, ...]:
        return self.rules.allow or ()

    def _allowed_name(self, name: str, port: int) -> Target | None:
        """The rule by which a name may be reached; the range of all addresses allows every name."""
        if self.rules.allow is None:
            return Target(text="all")
        for rule in (*self.rules.allow, *self.rules.connect):
            if rule.covers_name(name, port):
                return rule
        for rule in self.rules.allow:
            if rule.covers_all(4, port) or rule.covers_all(6, port):
                return rule
        return None

    def _denies_every_address(self, port: int) -> bool:
        return all(any(rule.covers_all(version, port) for rule in self.rules.deny) for version in (4, 6))
