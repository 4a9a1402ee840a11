"""What the API asks of the rest of the service: seams, so that it can be tested and moved without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from runtimed.core.accounting import LimitsShown, Receipt, SandboxMoney, UsagePage, UsageShown
from runtimed.core.egress import EgressRecord
from runtimed.core.ids import AccountId, SandboxId
from runtimed.core.lifecycle import State
from runtimed.core.network import EgressRules
from runtimed.core.sandbox import (
    Caller,
    ForkSpec,
    Inside,
    Page,
    SandboxChange,
    SandboxFilter,
    SandboxRecord,
    SandboxSpec,
    StartRecord,
)
from runtimed.core.secrets import SecretPlan, SecretRecord
from runtimed.core.snapshots import Copies, SnapshotChange, SnapshotFilter, SnapshotPage, SnapshotRecord, SnapshotSpec


class SandboxVerbs(Protocol):
    """Implemented by control.sandboxes; its docstrings say what each raises."""

    async def create(self, caller: Caller, spec: SandboxSpec, *, wait_s: float) -> tuple[SandboxRecord, bool]: ...

    async def get(self, caller: Caller, sandbox_id: str, *, deleted_too: bool = False) -> SandboxRecord: ...

    async def wait_for(self, caller: Caller, sandbox_id: str, state: State, *, within_s: float) -> SandboxRecord: ...

    async def page(self, caller: Caller, wanted: SandboxFilter, *, limit: int, cursor: str | None) -> Page: ...

    async def stop(self, caller: Caller, sandbox_id: str, *, wait_s: float) -> SandboxRecord: ...

    async def delete(self, caller: Caller, sandbox_id: str) -> SandboxRecord: ...

    async def extend(self, caller: Caller, sandbox_id: str, seconds: int) -> SandboxRecord: ...

    async def update(self, caller: Caller, sandbox_id: str, change: SandboxChange) -> SandboxRecord: ...

    async def set_network(self, caller: Caller, sandbox_id: str, rules: EgressRules) -> SandboxRecord: ...

    async def secrets_changed(self, account_id: AccountId) -> None: ...

    async def retain(self, caller: Caller, sandbox_id: str, days: int) -> SandboxRecord: ...

    async def inside(self, caller: Caller, sandbox_id: str) -> Inside: ...

    def doing(self, record: SandboxRecord) -> str | None: ...

    def counts(self) -> Mapping[str, int]: ...

    def started_by_how(self) -> Mapping[str, int]: ...


class MoveVerbs(Protocol):
    """Implemented by control.moves."""

    async def pause(self, caller: Caller, sandbox_id: str, *, wait_s: float) -> SandboxRecord: ...

    async def wake(self, caller: Caller, sandbox_id: str, *, lease_s: int | None, wait_s: float) -> SandboxRecord: ...

    async def restart(self, caller: Caller, sandbox_id: str, *, wait_s: float) -> SandboxRecord: ...

    async def starts(self, caller: Caller, sandbox_id: str) -> list[StartRecord]: ...


class ForkVerbs(Protocol):
    """Implemented by control.forks."""

    async def fork(self, caller: Caller, sandbox_id: str, spec: ForkSpec) -> Copies: ...


class SnapshotVerbs(Protocol):
    """Implemented by control.snapshots."""

    async def take(self, caller: Caller, sandbox_id: str, spec: SnapshotSpec, *, wait_s: float) -> SnapshotRecord: ...

    async def get(self, caller: Caller, snapshot_id: str) -> SnapshotRecord: ...

    async def page(self, caller: Caller, wanted: SnapshotFilter, *, limit: int, cursor: str | None) -> SnapshotPage: ...

    async def update(self, caller: Caller, snapshot_id: str, change: SnapshotChange) -> SnapshotRecord: ...

    async def extend(self, caller: Caller, snapshot_id: str, days: int) -> SnapshotRecord: ...

    async def delete(self, caller: Caller, snapshot_id: str) -> SnapshotRecord: ...


class AccountingVerbs(Protocol):
    """Implemented by control.accounting."""

    async def limits(self, caller: Caller) -> LimitsShown: ...

    async def usage(self, caller: Caller, *, since_s: float, until_s: float) -> UsageShown: ...

    async def export(
        self, caller: Caller, *, since_s: float, until_s: float, limit: int, cursor: str | None
    ) -> UsagePage: ...

    async def receipt(self, record: SandboxRecord) -> Receipt: ...

    async def money(self, sandbox_ids: Iterable[SandboxId]) -> Mapping[SandboxId, SandboxMoney]: ...


class SecretVerbs(Protocol):
    """Implemented by control.networks."""

    async def put(self, account_id: AccountId, plan: SecretPlan, value: str) -> SecretRecord: ...

    async def page(self, account_id: AccountId, *, after: str, limit: int) -> tuple[list[SecretRecord], bool]: ...

    async def delete(self, account_id: AccountId, name: str) -> None: ...


class EgressRecordVerbs(Protocol):
    """Implemented by control.egress_log."""

    async def page(self, sandbox_id: SandboxId, *, after: int, limit: int) -> list[EgressRecord]:
        """Those with a higher sequence, oldest first; of more than `limit`, the oldest."""
