"""What callers may do with sandboxes: finds the one they mean, checks that they may, and asks its owner."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from runtimed.control.finding import Finder, may_see
from runtimed.control.life import Life, LifeParts, Lives, stopped_error
from runtimed.control.sleep import Sleep, joined
from runtimed.control.snapshots import Snapshots
from runtimed.core.errors import InvalidRequest, NameTaken, NotRunning, RuntimedError, SandboxPaused
from runtimed.core.ids import AccountId, SandboxId, new_id
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.limits import LEASE_AHEAD_MAX_S, RETENTION_DEFAULT_DAYS
from runtimed.core.network import EgressRules
from runtimed.core.sandbox import Caller, Inside, Page, SandboxChange, SandboxFilter, SandboxRecord, SandboxSpec

END_WITHIN_S = 60.0
"""An answer to stop or delete waits this long; ending goes on after it."""

_log = logging.getLogger(__name__)


class Sandboxes:
    """Sandboxes as their callers see them. Every method raises NotFound for one that the caller may not see."""

    def __init__(self, *, lives: Lives, sleep: Sleep, snapshots: Snapshots, parts: LifeParts) -> None:
        self._lives, self._sleep, self._snapshots = lives, sleep, snapshots
        self._store, self._node, self._clock, self._till = parts.store, parts.node, parts.clock, parts.till
        self._ways = parts.ways
        self._finder = Finder(lives, parts.store)

    async def create(self, caller: Caller, spec: SandboxSpec, *, wait_s: float) -> tuple[SandboxRecord, bool]:
        """Start a sandbox and answer it as it is after at most `wait_s`; True where an existing one was taken.

        Raises:
            NoCapacity, InvalidRequest, NameTaken, ImageNotFound, SnapshotNotFound: there is no sandbox.
            StartFailed, HostUnavailable: it is stopped as `startup_failed`; its id is in the details.
        """
        if spec.get_or_create and (held := await self._take_holder(caller, spec, wait_s=wait_s)):
            return held, True
        self._ways.check_secrets(caller.account_id, spec.network.secrets)
        if spec.snapshot_id is not None:
            spec = await self._snapshots.fitting(caller, spec)
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

    async def get(self, caller: Caller, sandbox_id: str, *, deleted_too: bool = False) -> SandboxRecord:
        if deleted_too:
            return await self._finder.find(caller, sandbox_id)
        return await self._finder.get(caller, sandbox_id)

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
        """End its machine; of a persistent one the disk is kept. Stopping one that is stopped is done already."""
        record, life = await self._finder.life(caller, sandbox_id)
        if life is None:
            return record
        if life.record.state is not State.STOPPED:
            end = self._lives.end(life, StopReason.REQUESTED, keep_disk=life.record.persistent)
            await asyncio.wait({end}, timeout=wait_s)
        return life.record

    async def delete(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """End it in whatever state it is, and forget it. Deleting again answers the same."""
        record = await self._finder.find(caller, sandbox_id)
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
            if life.record.disk_kept:  # an end that was nearly over had kept it
                await asyncio.wait({self._lives.end(life, StopReason.REQUESTED)}, timeout=END_WITHIN_S)
            record = life.record
        await self._store.forget_answers(record.id)
        return record

    async def extend(self, caller: Caller, sandbox_id: str, seconds: int) -> SandboxRecord:
        """Move the end of the lease later, at most a day ahead of now."""
        life = self._awake(*await self._finder.life(caller, sandbox_id))
        left_s = min(life.record.ends_at_s - self._clock.now_s() + seconds, LEASE_AHEAD_MAX_S)
        await self._lease(life, left_s, life.record.lease_s)
        return life.record

    async def update(self, caller: Caller, sandbox_id: str, change: SandboxChange) -> SandboxRecord:
        """Change what may change. Raises NameTaken, and SandboxStopped for what only a running one has."""
        record, life = await self._finder.life(caller, sandbox_id)
        fields: dict[str, object] = {}
        for name, value in (
            ("name", change.name),
            ("labels", change.labels),
            ("user", change.user),
            ("auto_wake", change.auto_wake),
            ("on_lease_end", change.on_lease_end),
            ("idle_pause_s", change.idle_pause_s),
            ("persistent", change.persistent),
        ):
            if value is not None:
                fields[name] = value
        if change.clear_name:
            fields["name"] = None
        if life is None:
            running = (change.lease_s, change.user, change.max_total_micros)
            if change.env or any(value is not None for value in running):
                raise stopped_error(record)
            changed = replace(record, updated_at_s=self._clock.now_s(), **fields)  # type: ignore[arg-type]
            await self._store.save(changed, labels_too=change.labels is not None)
            return changed
        if change.env:
            life.env = {k: v for k, v in {**life.env, **change.env}.items() if v is not None}
            fields["env_names"] = tuple(sorted(life.env))
        runs = life.record.state is State.RUNNING
        if change.lease_s is not None and not runs:
            fields["lease_s"] = change.lease_s  # for the next time that it runs
        await self._lives.change(life, labels_too=change.labels is not None, **fields)
        if (change.env or change.user is not None) and runs:
            await self._node.guest(record.id).update(env=self._lives.env_of(life), user=life.record.user)
        if change.lease_s is not None and runs:
            await self._lease(life, change.lease_s, change.lease_s)
        if change.max_total_micros is not None or change.clear_max_total:
            await self._till.lifetime_cap(life.record, change.max_total_micros, field="maxTotalCostMicros")
        return life.record

    async def set_network(self, caller: Caller, sandbox_id: str, rules: EgressRules) -> SandboxRecord:
        """Replace its rules, at once: open connections that the new ones refuse are closed. Idempotent."""
        record, life = await self._finder.life(caller, sandbox_id)
        now_s = self._clock.now_s()
        before = life.record.network if life else record.network
        network = replace(before, rules=rules, version=before.version + 1, updated_at_s=now_s)
        if life is None:
            record = replace(record, network=network, updated_at_s=now_s)
            await self._store.save(record)
            return record
        await self._lives.change(life, network=network)
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
        record, life = await self._finder.life(caller, sandbox_id)
        if life is not None:
            await self._lives.change(life, retention_days=days)
            return life.record
        record = replace(record, retention_days=days, updated_at_s=self._clock.now_s())
        await self._store.save(record)
        return record

    async def inside(self, caller: Caller, sandbox_id: str) -> Inside:
        """The inside of a sandbox, waiting for one that still starts and waking one that sleeps. Counts as use.

        Raises:
            SandboxStopped, SandboxPaused (it does not wake by itself), NotRunning, MachineGone, and what a wake is
            refused with.
        """
        life = self._lives.get(SandboxId(sandbox_id))
        if life is None or not may_see(caller, life.record) or life.record.deleted_at_s is not None:
            raise stopped_error(await self.get(caller, sandbox_id))
        if life.record.state is not State.RUNNING:
            if life.record.state in (State.PAUSED, State.PAUSING) and not life.record.auto_wake:
                raise _paused(life.record)
            await self._sleep.running(life)
        life.active_at_s, life.active_mono_s = self._clock.now_s(), self._clock.monotonic_s()
        if life.first_command_at_s is None:
            life.first_command_at_s = life.active_at_s
        left_s = None if life.record.persistent else life.ends_mono_s - life.active_mono_s
        return Inside(record=life.record, guest=self._node.guest(life.record.id), lease_left_s=left_s)

    def doing(self, record: SandboxRecord) -> str | None:
        """What happens while a sandbox starts, a clause for people; None where there is nothing to say."""
        return self._node.doing(record.id) if record.state in (State.STARTING, State.RESUMING) else None

    def counts(self) -> Mapping[str, int]:
        """Sandboxes that are not stopped, by state."""
        states = (life.record.state for life in self._lives.all())
        return Counter(state.value for state in states if state is not State.STOPPED)

    def started_by_how(self) -> Mapping[str, int]:
        """Machines started since the service started, by how they came up."""
        return self._lives.started_total

    async def _take_holder(self, caller: Caller, spec: SandboxSpec, *, wait_s: float) -> SandboxRecord | None:
        """The sandbox that holds the name, running: woken or restarted if it has to be."""
        held = await self._store.holder(caller.account_id, spec.name or "")
        if held is None or not may_see(caller, held):
            return None
        life = self._lives.get(held.id)
        if life is None:
            return None
        if life.record.state is State.STOPPING and life.ending is not None:
            await asyncio.wait({life.ending}, timeout=END_WITHIN_S)
        if not life.record.can_run or life.record.state is State.STOPPING:
            return None
        try:
            async with asyncio.timeout(wait_s):
                if life.record.state is State.STOPPED:
                    await joined(self._sleep.restart(life), life)
                elif life.record.state in (State.PAUSED, State.PAUSING):
                    await joined(self._sleep.wake(life), life)
        except TimeoutError:
            return life.record  # it is on its way
        await self._lives.wait(life, State.RUNNING, within_s=wait_s)
        return life.record if life.record.can_run else None

    def _newest(self, record: SandboxRecord) -> SandboxRecord:
        life = self._lives.get(record.id)
        return life.record if life else record

    def _awake(self, record: SandboxRecord, life: Life | None) -> Life:
        if life is None or life.record.state in (State.STOPPING, State.STOPPED):
            raise stopped_error(life.record if life else record)
        if life.record.state in (State.PAUSED, State.PAUSING):
            raise _paused(life.record)
        if life.record.state in (State.STARTING, State.RESUMING):
            raise NotRunning(f"sandbox {record.id} is {life.record.state}", hint="wait until its state is running")
        return life

    async def _lease(self, life: Life, left_s: float, lease_s: int) -> None:
        await self._till.lease_changed(life.record, left_s)
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
            cpu_floor_millis=_floor_millis(spec),
            lease_s=spec.lease_s,
            on_lease_end=spec.on_lease_end,
            idle_pause_s=spec.idle_pause_s,
            persistent=spec.persistent,
            snapshot_id=spec.snapshot_id,
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


def _floor_millis(spec: SandboxSpec) -> int | None:
    """Raises InvalidRequest for more than its vCPUs, of which a snapshot may have fewer."""
    whole = spec.shape.vcpu * 1000
    if spec.cpu_reserved:
        return whole
    if spec.cpu_floor_millis is not None and spec.cpu_floor_millis > whole:
        raise InvalidRequest([{"field": "cpuFloorMillis", "message": f"must be at most {whole}, that of all vCPUs"}])
    return spec.cpu_floor_millis


def _paused(record: SandboxRecord) -> SandboxPaused:
    return SandboxPaused(
        f"sandbox {record.id} is {record.state}", hint="wake it first", details={"state": record.state.value}
    )
