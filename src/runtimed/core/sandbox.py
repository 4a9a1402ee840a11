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

LeaseEnd = Literal["pause", "stop", "delete"]
"""What happens at the end of the lease."""
StartCause = Literal["create", "wake", "restart", "fork"]
DAY_S = 86_400


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
    on_lease_end: LeaseEnd = "pause"
    idle_pause_s: int = 0
    """Pause after so long without use; 0 is never."""
    auto_wake: bool = True
    persistent: bool = False
    """Its lease renews itself, and a stop keeps its disk."""
    user: UserName = "sandbox"
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    spending: Spending = field(default_factory=Spending)
    snapshot_id: str | None = None
    """Begin as a copy of it."""
    shape_asked: frozenset[str] = frozenset()
    """Which of vcpu, memoryMiB and diskMiB the caller named; the others are a snapshot's own."""
    network_asked: bool = True
    """Without it a copy of a snapshot has the rules that its source had."""
    cpu_floor_millis: int | None = None
    """Thousandths of a vCPU to be guaranteed; None where the caller did not ask."""
    cpu_reserved: bool = False
    """All of its vCPUs are to be guaranteed, however many those are."""
    get_or_create: bool = False
    """With a name: answer the sandbox that holds it, if there is one."""


@dataclass(frozen=True, kw_only=True)
class SandboxRecord:
    """Everything that is kept of a sandbox. Values of its environment are kept sealed."""

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
    idle_pause_s: int = 0
    persistent: bool = False
    paused_at_s: float | None = None
    disk_kept: bool = False
    """Stopped, and a restart can boot its disk."""
    stored_bytes: int = 0
    """What it alone owns on the host's disk while it does not run."""
    snapshot_id: str | None = None
    """It began as a copy of this snapshot."""
    source_id: SandboxId | None = None
    """It began as a fork of this sandbox."""
    note: str | None = None
    """Why its last pause failed, or its start, for people."""
    cpu_floor_millis: int | None = None
    """Thousandths of a vCPU that it asked to be guaranteed, and pays also when unused; None where it did not ask."""
    env_sealed: bytes | None = field(default=None, repr=False)

    @property
    def can_run(self) -> bool:
        """Whether it holds its name: it runs, or may run again."""
        return self.state is not State.STOPPED or (self.disk_kept and self.deleted_at_s is None)

    @property
    def kept_until_s(self) -> float | None:
        """When what is kept of it goes, wall clock; None while it runs or where nothing is kept."""
        since_s = self.ended_at_s if self.state is State.STOPPED else self.paused_at_s
        kept = self.state is State.PAUSED or (self.state is State.STOPPED and self.disk_kept)
        return since_s + self.retention_days * DAY_S if kept and since_s is not None else None


@dataclass(frozen=True, kw_only=True)
class Inside:
    """A running sandbox that a caller may reach into."""

    record: SandboxRecord
    guest: Guest
    lease_left_s: float | None = None
    """Until its lease ends; None where that renews itself."""


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
    idle_pause_s: int | None = None
    persistent: bool | None = None
    max_total_micros: Micros | None = None
    clear_max_total: bool = False


@dataclass(frozen=True, kw_only=True)
class ForkSpec:
    """Copies of a running sandbox. Names are `name`, `name-1`, `name-2`, ..."""

    count: int = 1
    name: str | None = None
    labels: Mapping[str, str] | None = None
    """None takes the source's own."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets that the copies may use: none unless asked."""
    keep_snapshot: bool = False


@dataclass(frozen=True, kw_only=True)
class StartRecord:
    """One start of a sandbox's machine: its receipt."""

    sandbox_id: SandboxId
    number: int
    """1, 2, 3, ... for each sandbox."""
    cause: StartCause
    asked_at_s: float
    started: Started
    policy_version: int
    """Of the network rules that were bound before its first instruction."""
    policy_bound_ms: float
    """Since it was asked, like the steps of `started`."""
    first_command_ms: float | None = None


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
