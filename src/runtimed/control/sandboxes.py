"""What callers may do with sandboxes: finds the one they mean, checks that they may, and asks its owner."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from runtimed.control.life import Life, Lives
from runtimed.control.till import FreeTill, Till
from runtimed.core.clock import Clock
from runtimed.core.errors import (
    NameTaken,
    NotFound,
    NotPaused,
    NotRunning,
    RuntimedError,
    SandboxPaused,
    SandboxStopped,
)
from runtimed.core.ids import AccountId, SandboxId, is_id, new_id
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.limits import LEASE_AHEAD_MAX_S
from runtimed.core.network import EgressRules
from runtimed.core.ports import Node
from runtimed.core.sandbox import Caller, Inside, Page, SandboxChange, SandboxFilter, SandboxRecord, SandboxSpec
from runtimed.store.sandboxes import SandboxStore

READY_WITHIN_S = 60.0
"""A command for a sandbox that is still starting waits this long for it."""
END_WITHIN_S = 60.0
"""An answer to stop or delete waits this long; ending goes on after it."""
RETENTION_DEFAULT_DAYS = 30

_log = logging.getLogger(__name__)


class Sandboxes:
    """Sandboxes as their callers see them. Every method raises NotFound for one that the caller may not see."""

    def __init__(
        self, *, lives: Lives, store: SandboxStore, node: Node, clock: Clock, till: Till | None = None
    ) -> None:
        self._till = till or FreeTill()
        self._lives = lives
        self._store = store
        self._node = node
        self._clock = clock

    async def create(self, caller: Caller, spec: SandboxSpec, *, wait_s: float) -> tuple[SandboxRecord, bool]:
        """Start a sandbox and answer it as it is after at most `wait_s`; True where an existing one was taken.

        Raises:
            NoCapacity, InvalidRequest, NameTaken, ImageNotFound: there is no sandbox.
            StartFailed, HostUnavailable: it is stopped as `startup_failed`; its id is in the details.
        """
        if spec.get_or_create and (held := await self._take_holder(caller, spec, wait_s=wait_s)):
            return held, True
        try:
            life = await self._lives.begin(self._new_record(caller, spec), spec.env, spec.spending)
        except NameTaken:
            # Another create with the same name was faster.
            if spec.get_or_create and (held := await self._take_holder(caller, spec, wait_s=wait_s)):
                return held, True
            raise
        await self._lives.wait(life, State.RUNNING, within_s=wait_s)
        if life.failure is not None:
            raise life.failure
        return life.record, False

    async def get(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        record = await self._find(caller, sandbox_id)
        if record.deleted_at_s is not None:
            raise _not_found(sandbox_id)
        return record

    async def wait_for(self, caller: Caller, sandbox_id: str, state: State, *, within_s: float) -> SandboxRecord:
        """The sandbox when it is in `state`, can no longer come to it, or the time is over."""
        record = await self.get(caller, sandbox_id)
        if life := self._lives.get(record.id):
            await self._lives.wait(life, state, within_s=within_s)
            return life.record
        return record

    async def page(self, caller: Caller, wanted: SandboxFilter, *, limit: int, cursor: str | None) -> Page:
        """One page, oldest first."""
        found = await self._store.page(caller, wanted, limit=limit, cursor=cursor)
        return replace(found, records=tuple(self._newest(record) for record in found.records))

    async def stop(self, caller: Caller, sandbox_id: str, *, wait_s: float) -> SandboxRecord:
        """End its machine and its disk. Stopping one that is stopped is done already."""
        record = await self.get(caller, sandbox_id)
        life = self._lives.get(record.id)
        if life is None:
            return record
        await asyncio.wait({self._lives.end(life, StopReason.REQUESTED)}, timeout=wait_s)
        return life.record

    async def delete(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """End it in whatever state it is, and forget it. Deleting again answers the same."""
        record = await self._find(caller, sandbox_id)
        if record.deleted_at_s is not None:
            return record
        life = self._lives.get(record.id)
        if life is None:
            now_s = self._clock.now_s()
            record = replace(record, deleted_at_s=now_s, updated_at_s=now_s)
            await self._store.save(record)
        else:
            await self._lives.change(life, deleted_at_s=self._clock.now_s())
            await asyncio.wait({self._lives.end(life, StopReason.REQUESTED)}, timeout=END_WITHIN_S)
            record = life.record
        await self._store.forget_answers(record.id)
        return record

    async def extend(self, caller: Caller, sandbox_id: str, seconds: int) -> SandboxRecord:
        """Move the end of the lease later, at most a day ahead of now."""
        life = self._running(await self.get(caller, sandbox_id))
        left_s = min(life.record.ends_at_s - self._clock.now_s() + seconds, LEASE_AHEAD_MAX_S)
        await self._lease(life, left_s, life.record.lease_s)
        return life.record

    async def update(self, caller: Caller, sandbox_id: str, change: SandboxChange) -> SandboxRecord:
        """Change what may change. Raises NameTaken, and SandboxStopped for what only a running one has."""
        record = await self.get(caller, sandbox_id)
        fields: dict[str, object] = {}
        for name, value in (
            ("name", change.name),
            ("labels", change.labels),
            ("user", change.user),
            ("auto_wake", change.auto_wake),
            ("on_lease_end", change.on_lease_end),
        ):
            if value is not None:
                fields[name] = value
        if change.clear_name:
            fields["name"] = None
        life = self._lives.get(record.id)
        if life is None:
            running = (change.lease_s, change.user, change.max_total_micros)
            if change.env or any(value is not None for value in running):
                raise _stopped(record)
            changed = replace(record, updated_at_s=self._clock.now_s(), **fields)  # type: ignore[arg-type]
            await self._store.save(changed, labels_too=change.labels is not None)
            return changed
        if change.env:
            life.env = {k: v for k, v in {**life.env, **change.env}.items() if v is not None}
            fields["env_names"] = tuple(sorted(life.env))
        await self._lives.change(life, labels_too=change.labels is not None, **fields)
        if change.env or change.user is not None:
            await self._node.guest(record.id).update(env=self._lives.env_of(life), user=life.record.user)
        if change.lease_s is not None:
            await self._lease(life, change.lease_s, change.lease_s)
        if change.max_total_micros is not None or change.clear_max_total:
            await self._till.lifetime_cap(life.record, change.max_total_micros, field="maxTotalCostMicros")
        return life.record

    async def set_network(self, caller: Caller, sandbox_id: str, rules: EgressRules) -> SandboxRecord:
        """Replace its rules, at once: open connections that the new ones refuse are closed. Idempotent."""
        record = await self.get(caller, sandbox_id)
        life = self._lives.get(record.id)
        now_s = self._clock.now_s()
        before = life.record.network if life else record.network
        network = replace(before, rules=rules, version=before.version + 1, updated_at_s=now_s)
        if life is None:
            record = replace(record, network=network, updated_at_s=now_s)
            await self._store.save(record)
            return record
        await self._lives.change(life, network=network)
        self._lives.rebind(life)
        return life.record

    async def secrets_changed(self, account_id: AccountId) -> None:
        """Commands that start from now on see the account's secrets as they are now."""
        for life in self._lives.all():
            if life.record.account_id == account_id and life.record.state is State.RUNNING:
                try:
                    await self._node.guest(life.record.id).update(env=self._lives.env_of(life), user=life.record.user)
                except RuntimedError as gone:
                    _log.info("sandbox %s was not told of its secrets: %s", life.record.id, gone)

    async def retain(self, caller: Caller, sandbox_id: str, days: int) -> SandboxRecord:
        """How long it is kept once it is paused or stopped."""
        record = await self.get(caller, sandbox_id)
        if life := self._lives.get(record.id):
            await self._lives.change(life, retention_days=days)
            return life.record
        record = replace(record, retention_days=days, updated_at_s=self._clock.now_s())
        await self._store.save(record)
        return record

    async def wake(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """Raises NotPaused: nothing can be paused yet."""
        record = await self.get(caller, sandbox_id)
        if record.state in (State.STOPPED, State.STOPPING):
            raise _stopped(record)
        raise NotPaused(f"sandbox {record.id} is {record.state}, not paused", details={"state": record.state.value})

    async def inside(self, caller: Caller, sandbox_id: str) -> Inside:
        """The inside of a running sandbox, waiting for one that is still starting. Counts as use.

        Raises:
            SandboxStopped, SandboxPaused, NotRunning, MachineGone.
        """
        life = self._lives.get(SandboxId(sandbox_id))
        if life is None or not self._may_see(caller, life.record) or life.record.deleted_at_s is not None:
            raise _stopped(await self.get(caller, sandbox_id))
        if life.record.state is State.STARTING:
            await self._lives.wait(life, State.RUNNING, within_s=READY_WITHIN_S)
        life = self._running(life.record)
        life.active_at_s = self._clock.now_s()
        return Inside(record=life.record, guest=self._node.guest(life.record.id))

    def counts(self) -> Mapping[str, int]:
        """Sandboxes that are not stopped, by state."""
        return Counter(life.record.state.value for life in self._lives.all())

    def started_by_how(self) -> Mapping[str, int]:
        """Machines started since the service started, by how they came up."""
        return self._lives.started_total

    async def _take_holder(self, caller: Caller, spec: SandboxSpec, *, wait_s: float) -> SandboxRecord | None:
        held = await self._store.holder(caller.account_id, spec.name or "")
        if held is None or not self._may_see(caller, held):
            return None
        life = self._lives.get(held.id)
        if life is None:
            return None
        if life.record.state is State.STOPPING:
            await asyncio.wait({self._lives.end(life, StopReason.REQUESTED)}, timeout=END_WITHIN_S)
            return None
        await self._lives.wait(life, State.RUNNING, within_s=wait_s)
        return life.record if life.record.can_run else None

    async def _find(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """Deleted ones too."""
        if not is_id(sandbox_id):
            raise _not_found(sandbox_id)
        life = self._lives.get(SandboxId(sandbox_id))
        record = life.record if life else await self._store.get(SandboxId(sandbox_id))
        if record is None or not self._may_see(caller, record):
            raise _not_found(sandbox_id)
        return record

    def _may_see(self, caller: Caller, record: SandboxRecord) -> bool:
        own = caller.account_wide or record.key_id == caller.key_id
        return record.account_id == caller.account_id and own

    def _newest(self, record: SandboxRecord) -> SandboxRecord:
        life = self._lives.get(record.id)
        return life.record if life else record

    def _running(self, record: SandboxRecord) -> Life:
        life = self._lives.get(record.id)
        if life is None or life.record.state is State.STOPPING:
            raise _stopped(life.record if life else record)
        if life.record.state in (State.PAUSED, State.PAUSING):
            raise SandboxPaused(f"sandbox {record.id} is paused", hint="wake it first")
        if life.record.state is State.STARTING:
            raise NotRunning(f"sandbox {record.id} is still starting", hint="wait until its state is running")
        return life

    async def _lease(self, life: Life, left_s: float, lease_s: int) -> None:
        await self._till.lease_changed(life.record, left_s)
        life.ends_mono_s = self._clock.monotonic_s() + left_s
        await self._lives.change(life, ends_at_s=self._clock.now_s() + left_s, lease_s=lease_s)

    def _new_record(self, caller: Caller, spec: SandboxSpec) -> SandboxRecord:
        now_s = self._clock.now_s()
        return SandboxRecord(
            id=SandboxId(new_id()),
            account_id=caller.account_id,
            key_id=caller.key_id,
            name=spec.name,
            labels=dict(spec.labels),
            env_names=tuple(sorted(spec.env)),
            image=spec.image,
            shape=spec.shape,
            lease_s=spec.lease_s,
            on_lease_end=spec.on_lease_end,
            auto_wake=spec.auto_wake,
            user=spec.user,
            retention_days=RETENTION_DEFAULT_DAYS,
            state=State.STARTING,
            created_at_s=now_s,
            updated_at_s=now_s,
            last_active_at_s=now_s,
            ends_at_s=now_s + spec.lease_s,
            network=replace(spec.network, updated_at_s=now_s),
        )


def _not_found(sandbox_id: str) -> NotFound:
    return NotFound(f"there is no sandbox {sandbox_id!r}", hint="runtime sandbox ls shows those that there are")


def _stopped(record: SandboxRecord) -> SandboxStopped:
    why = f" ({record.stop_reason})" if record.stop_reason else ""
    return SandboxStopped(
        f"sandbox {record.id} is {record.state.value}{why}",
        hint="create a new one; what ran in this one is gone",
        details={"state": record.state.value, "stopReason": record.stop_reason and record.stop_reason.value},
    )
