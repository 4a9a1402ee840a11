"""The seam of the gateway: what is bound to a machine, what is written down, what the service may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from runtimed.core.ids import AccountId, SandboxId
from runtimed.core.network import OPEN, EgressRules, WrittenRules, read_rules
from runtimed.core.secrets import SecretRecord

What = Literal["connection", "closed", "request", "dns", "secret", "limit"]
"""`connection` and `request`: it was judged; `closed`: it is over, with its bytes; `secret`: an answer held one."""


@dataclass(frozen=True, kw_only=True)
class NetworkPolicy:
    """What is kept of a sandbox's network. `version` grows with every change."""

    rules: EgressRules = OPEN
    version: int = 1
    updated_at_s: float | None = None
    secrets: tuple[str, ...] | None = None
    """Names of the secrets it may use; None is every one of its account."""

    def as_json(self) -> dict[str, object]:
        return {
            "rules": self.rules.as_json(),
            "version": self.version,
            "updated_at_s": self.updated_at_s,
            "secrets": None if self.secrets is None else list(self.secrets),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> NetworkPolicy:
        """What `as_json` gave."""
        rules, _ = read_rules(WrittenRules(**kept["rules"]))
        secrets = kept["secrets"]
        return cls(
            rules=rules,
            version=kept["version"],
            updated_at_s=kept["updated_at_s"],
            secrets=None if secrets is None else tuple(secrets),
        )


@dataclass(frozen=True, kw_only=True)
class EgressBinding:
    """What a machine may reach, from before its first instruction on."""

    account_id: AccountId
    rules: EgressRules
    secrets: frozenset[str] | None = None
    """Names of the secrets it may use; None is every one of its account."""


@dataclass(frozen=True, kw_only=True)
class Happened:
    """A verdict."""

    what: What
    host: str
    port: int
    allowed: bool
    rule: str
    bytes_out: int = 0
    bytes_in: int = 0
    address: str | None = None
    secrets: tuple[str, ...] = ()
    """Names of the secrets that went out with it."""
    failure: str | None = None
    """Why what the rules allow did not come about: the DNS, the server, its certificate."""


@dataclass(frozen=True, kw_only=True)
class EgressRecord:
    """A verdict, written down. `sequence` grows within a sandbox; `at_s` is wall clock."""

    sequence: int
    at_s: float
    sandbox_id: SandboxId
    happened: Happened

    def as_json(self) -> dict[str, object]:
        """As the wire protocol and the files on disk spell it, but for the time."""
        it = self.happened
        shown: dict[str, object] = {
            "sequence": self.sequence,
            "sandboxId": self.sandbox_id,
            "what": it.what,
            "host": it.host,
            "port": it.port,
            "allowed": it.allowed,
            "rule": it.rule,
            "bytesOut": it.bytes_out,
            "bytesIn": it.bytes_in,
        }
        if it.address is not None:
            shown["address"] = it.address
        if it.secrets:
            shown["secrets"] = list(it.secrets)
        if it.failure is not None:
            shown["failure"] = it.failure
        return shown


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes over a machine's connections since it was bound."""

    sent: int = 0
    """By the guest."""
    moved: int = 0
    """In both directions."""


class EgressDoor(Protocol):
    """The gateway, as the service sees it. Nothing here waits: a policy counts when the call returns."""

    ca_pem: str
    """The certificate that guests must trust for hosts that have a secret."""

    def bind(self, sandbox_id: SandboxId, binding: EgressBinding) -> None:
        """Before the machine runs, and again by every way in which it can start. Twice is once, the last one counts.

        Open connections that the new rules refuse are closed.
        """

    def unbind(self, sandbox_id: SandboxId) -> None:
        """The machine is gone: nothing of it reaches anything. Twice is once."""

    @property
    def secrets(self) -> Sequence[SecretRecord]:
        """Those of every account."""

    def binding(self, sandbox_id: SandboxId) -> EgressBinding | None: ...

    def traffic(self, sandbox_id: SandboxId) -> Traffic:
        """What went over the connections of a bound machine until now, open ones included; else nothing."""

    def records(self, sandbox_id: SandboxId, *, after: int, limit: int) -> list[EgressRecord]:
        """The newest that the gateway has in memory, with a sequence over `after`, oldest first."""

    def watch(self, told: Callable[[EgressRecord], None]) -> Callable[[], None]:
        """Be told of every record; call what comes back to stop. Who is told must not wait."""

    def go_on_after(self, newest: Mapping[SandboxId, int]) -> None:
        """Number records above these from now on. Before anything is bound."""

    def seal(self, secret_id: str, value: str) -> bytes:
        """The value as it may be stored."""

    def put_secret(self, record: SecretRecord) -> None:
        """Use this from the next request on. Raises HostUnavailable when it cannot be opened."""

    def drop_secret(self, secret_id: str) -> None: ...

    def secrets_of(self, sandbox_id: SandboxId) -> tuple[SecretRecord, ...]:
        """Those that a machine may use now."""
