"""A sandbox as values: who asks, what was asked for, what is recorded, what may be changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runtimed.core.egress import NetworkPolicy
from runtimed.core.ids import AccountId, KeyId, SandboxId
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.money import Micros, Spending
from runtimed.core.ports import Guest
from runtimed.core.specs import Shape, Started, UserName

LeaseEnd = Literal["stop", "delete"]
"""What happens at the end of the lease. `pause` comes with pausing."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who sent a request, as its key says."""

    account_id: AccountId
    key_id: KeyId
    read_only: bool
    account_wide: bool
    """Without it the key reaches only what it made itself."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """What a caller asked for, checked, with every default filled in."""

    image: str
    shape: Shape
    lease_s: int
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    on_lease_end: LeaseEnd = "stop"
    auto_wake: bool = True
    user: UserName = "sandbox"
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    spending: Spending = field(default_factory=Spending)
    get_or_create: bool = False
    """With a name: answer the sandbox that holds it, if there is one."""


@dataclass(frozen=True, kw_only=True)
class SandboxRecord:
    """Everything that is kept of a sandbox. Values of its environment are not: only their names."""

    id: SandboxId
    account_id: AccountId
    key_id: KeyId
    name: str | None
    labels: Mapping[str, str]
    env_names: tuple[str, ...]
    image: str
    shape: Shape
    lease_s: int
    on_lease_end: LeaseEnd
    auto_wake: bool
    user: UserName
    retention_days: int
    state: State
    created_at_s: float
    updated_at_s: float
    last_active_at_s: float
    ends_at_s: float
    """When the lease ends, wall clock."""
    ready_at_s: float | None = None
    ended_at_s: float | None = None
    deleted_at_s: float | None = None
    stop_reason: StopReason | None = None
    started: Started | None = None
    network: NetworkPolicy = field(default_factory=NetworkPolicy)

    @property
    def can_run(self) -> bool:
        """Whether it holds its name: it runs, or may run again."""
        return self.state is not State.STOPPED


@dataclass(frozen=True, kw_only=True)
class Inside:
    """A running sandbox that a caller may reach into."""

    record: SandboxRecord
    guest: Guest


@dataclass(frozen=True, kw_only=True)
class SandboxChange:
    """An update; None leaves a field as it is. `env` sets values, and removes those that are None."""

    name: str | None = None
    clear_name: bool = False
    labels: Mapping[str, str] | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)
    user: UserName | None = None
    auto_wake: bool | None = None
    lease_s: int | None = None
    """A new lease from now."""
    on_lease_end: LeaseEnd | None = None
    max_total_micros: Micros | None = None
    clear_max_total: bool = False


@dataclass(frozen=True, kw_only=True)
class SandboxFilter:
    """Which sandboxes a list shows. Stopped ones only when asked for by `states` or `include_stopped`."""

    states: frozenset[State] = frozenset()
    include_stopped: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of a list, oldest first. `next_cursor` is None on the last one."""

    records: tuple[SandboxRecord, ...]
    next_cursor: str | None
