"""Keeps sandboxes as snapshots, and removes those that nobody wants any more. One owner for every snapshot's state.

capturing --kept--> ready --delete, expired--> deleting --forgotten--> deleted
    '---failed---> failed ---delete, expired----'
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from weakref import WeakValueDictionary

from runtimed.control.finding import Finder
from runtimed.control.life import Life, LifeParts, Lives, stopped_error
from runtimed.control.sleep import told
from runtimed.core.clock import Clock
from runtimed.core.errors import (
    InvalidRequest,
    RuntimedError,
    SnapshotChanged,
    SnapshotFailed,
    SnapshotNotFound,
)
from runtimed.core.ids import is_id, new_id
from runtimed.core.lifecycle import State
from runtimed.core.ports import Node
from runtimed.core.sandbox import DAY_S, Caller, SandboxRecord, SandboxSpec
from runtimed.core.snapshots import (
    SnapshotChange,
    SnapshotFilter,
    SnapshotPage,
    SnapshotRecord,
    SnapshotSpec,
)
from runtimed.core.specs import Shape, Stored
from runtimed.core.tasks import spawn
from runtimed.store.snapshots import SnapshotStore

EXPIRE_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class Locks:
    """One lock for each name that anybody holds or waits for."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __getitem__(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


class Snapshots:
    """Every method raises SnapshotNotFound for one that the caller may not see."""

    def __init__(self, *, lives: Lives, parts: LifeParts, store: SnapshotStore) -> None:
        self._lives, self._store = lives, store
        self._node: Node = parts.node
        self._clock: Clock = parts.clock
        self._finder = Finder(lives, parts.store)
        self._locks = Locks()
        self._underway: set[str] = set()
        """Snapshots that somebody is making; what says `capturing` and is not among them has failed."""

    async def take(self, caller: Caller, sandbox_id: str, spec: SnapshotSpec, *, wait_s: float) -> SnapshotRecord:
        """Keep a running or paused sandbox; it goes on as it was. Answers `capturing` after `wait_s` at the latest.

        Raises:
            NotFound, SandboxStopped: there is nothing to keep.
        """
        record, life = await self._finder.life(caller, sandbox_id)
        if life is None or life.record.state in (State.STOPPED, State.STOPPING):
            raise stopped_error(record)
        snapshot = await self.begin(caller, record, spec)
        capture = spawn(self._capture(life, snapshot), name=f"capture {snapshot.id}")
        await asyncio.wait({capture}, timeout=wait_s)
        return await self._store.get(snapshot.id) or snapshot

    async def begin(self, caller: Caller, record: SandboxRecord, spec: SnapshotSpec) -> SnapshotRecord:
        """Record a snapshot of a sandbox that is about to be captured; then comes `finish` or `give_up`."""
        now_s = self._clock.now_s()
        snapshot = SnapshotRecord(
            id=new_id(),
            account_id=record.account_id,
            key_id=caller.key_id,
            name=spec.name,
            labels=dict(spec.labels),
            mode=spec.mode,
            state="capturing",
            source_id=record.id,
            image=record.image,
            image_id=record.started.image_id if record.started else None,
            shape=record.shape,
            network=record.network,
            retention_days=spec.retention_days,
            created_at_s=now_s,
            expires_at_s=now_s + spec.retention_days * DAY_S,
        )
        self._underway.add(snapshot.id)
        try:
            await self._store.add(snapshot)
        except BaseException:
            self._underway.discard(snapshot.id)
            raise
        return snapshot

    async def finish(self, snapshot: SnapshotRecord, stored: Stored) -> SnapshotRecord:
        """It was captured. One that was deleted meanwhile is forgotten."""
        try:
            async with self._locks[snapshot.id]:
                now = await self._store.get(snapshot.id)
                if now is None or now.state != "capturing":
                    await self._node.forget_snapshot(snapshot.id)
                    return now or snapshot
                owned_bytes = stored.memory_bytes + stored.disk_bytes
                ready = replace(now, state="ready", ready_at_s=self._clock.now_s(), stored_bytes=owned_bytes)
                await self._store.save(ready)
                return ready
        finally:
            self._underway.discard(snapshot.id)

    async def give_up(self, snapshot: SnapshotRecord) -> None:
        """What it was to be kept of did not come about: nothing of it is left."""
        self._underway.discard(snapshot.id)
        await self._remove(snapshot)

    async def get(self, caller: Caller, snapshot_id: str) -> SnapshotRecord:
        """One that was not deleted."""
        record = await self._find(caller, snapshot_id)
        if record.deleted_at_s is not None:
            raise _not_found(snapshot_id)
        return record

    async def page(self, caller: Caller, wanted: SnapshotFilter, *, limit: int, cursor: str | None) -> SnapshotPage:
        """One page, oldest first."""
        return await self._store.page(caller, wanted, limit=limit, cursor=cursor)

    async def update(self, caller: Caller, snapshot_id: str, change: SnapshotChange) -> SnapshotRecord:
        """Change its name or labels. Raises SnapshotChanged when the labels are not those that were expected."""
        async with self._locks[snapshot_id]:
            record = await self.get(caller, snapshot_id)
            if change.if_labels is not None and dict(change.if_labels) != dict(record.labels):
                raise SnapshotChanged("its labels are others by now", hint="read it again", details={"id": record.id})
            if change.clear_name or change.name is not None:
                record = replace(record, name=change.name)
            if change.labels is not None:
                record = replace(record, labels=dict(change.labels))
            await self._store.save(record)
        return record

    async def extend(self, caller: Caller, snapshot_id: str, days: int) -> SnapshotRecord:
        """Keep it for so many days from now."""
        async with self._locks[snapshot_id]:
            record = await self.get(caller, snapshot_id)
            record = replace(record, retention_days=days, expires_at_s=self._clock.now_s() + days * DAY_S)
            await self._store.save(record)
        return record

    async def delete(self, caller: Caller, snapshot_id: str) -> SnapshotRecord:
        """Remove it; copies that run keep what they need. Deleting again answers the same."""
        record = await self._find(caller, snapshot_id)
        return await self._remove(record)

    async def fitting(self, caller: Caller, spec: SandboxSpec) -> SandboxSpec:
        """A create from a snapshot, with what the snapshot decides filled in.

        Raises:
            SnapshotNotFound; SnapshotFailed when it is not ready; InvalidRequest for a size that its memory fixes.
        """
        record = await self.get(caller, spec.snapshot_id or "")
        if record.state != "ready":
            raise SnapshotFailed(f"snapshot {record.id} is {record.state}, not ready", details={"state": record.state})
        asked = {"vcpu": spec.shape.vcpu, "memoryMiB": spec.shape.memory_mib, "diskMiB": spec.shape.disk_mib}
        kept = {"vcpu": record.shape.vcpu, "memoryMiB": record.shape.memory_mib, "diskMiB": record.shape.disk_mib}
        sizes = {name: asked[name] if name in spec.shape_asked else kept[name] for name in kept}
        wrong = [name for name in kept if sizes[name] != kept[name]]
        if wrong and record.mode == "memory":
            message = "is fixed by the snapshot's memory: {} there"
            raise InvalidRequest([{"field": name, "message": message.format(kept[name])} for name in wrong])
        if sizes["diskMiB"] < kept["diskMiB"]:
            message = f"must be at least {kept['diskMiB']}, the size of the snapshot's disk: a disk only grows"
            raise InvalidRequest([{"field": "diskMiB", "message": message}])
        network = spec.network
        if not spec.network_asked:
            network = replace(network, rules=record.network.rules)
        shape = Shape(vcpu=sizes["vcpu"], memory_mib=sizes["memoryMiB"], disk_mib=sizes["diskMiB"])
        return replace(spec, image=record.image, shape=shape, network=network)

    async def reconcile(self) -> None:
        """Remove what has expired and what was half removed; what nobody makes any more has failed. Idempotent."""
        for record in [*await self._store.expired(self._clock.now_s()), *await self._store.unfinished()]:
            if record.id in self._underway:
                continue
            try:
                if record.state == "capturing":
                    await self._failed(record, "it could not be captured")
                else:
                    await self._remove(record)
            except RuntimedError as failure:
                # One that cannot be removed now must not keep all others from it.
                _log.warning("snapshot %s could not be removed: %s", record.id, failure.message)

    async def recover(self) -> None:
        """At the start: what an earlier service did not finish has failed, or is removed."""
        for record in await self._store.unfinished():
            if record.state == "capturing":
                await self._node.forget_snapshot(record.id)
                await self._store.save(replace(record, state="failed", error="the service ended while it was made"))
            else:
                await self._remove(record)

    async def run(self) -> None:
        """Reconcile for ever."""
        while True:
            await self._clock.sleep(EXPIRE_EVERY_S)
            await self.reconcile()

    async def _capture(self, life: Life, snapshot: SnapshotRecord) -> None:
        try:
            failure = await told(self._keep(life, snapshot))
        except BaseException:
            # The sandbox was ended meanwhile, or we have a defect.
            await asyncio.shield(self._failed(snapshot, "it could not be captured"))
            raise
        finally:
            self._underway.discard(snapshot.id)
        if failure is not None:
            await self._failed(snapshot, failure.message)

    async def _keep(self, life: Life, snapshot: SnapshotRecord) -> None:
        async with self._lives.turn(life):
            if life.record.state not in (State.RUNNING, State.PAUSED):
                raise stopped_error(life.record)
            stored = await self._node.snapshot(life.record.id, snapshot.id, snapshot.mode)
        await self.finish(snapshot, stored)

    async def _failed(self, snapshot: SnapshotRecord, why: str) -> None:
        async with self._locks[snapshot.id]:
            now = await self._store.get(snapshot.id)
            if now is not None and now.state == "ready":
                return  # it was written down, and only the word of that was lost
            _log.warning("snapshot %s could not be made: %s", snapshot.id, why)
            try:
                await self._node.forget_snapshot(snapshot.id)
            except RuntimedError as failure:
                _log.warning("what is left of snapshot %s could not be removed: %s", snapshot.id, failure)
            if now is not None and now.state == "capturing":
                await self._store.save(replace(now, state="failed", error=why[:1000]))

    async def _remove(self, record: SnapshotRecord) -> SnapshotRecord:
        async with self._locks[record.id]:
            record = await self._store.get(record.id) or record
            if record.state == "deleted":
                return record
            await self._store.save(replace(record, state="deleting"))
            await self._node.forget_snapshot(record.id)
            record = replace(record, state="deleted", deleted_at_s=self._clock.now_s())
            await self._store.save(record)
        return record

    async def _find(self, caller: Caller, snapshot_id: str) -> SnapshotRecord:
        record = await self._store.get(snapshot_id) if is_id(snapshot_id) else None
        if record is None or record.account_id != caller.account_id:
            raise _not_found(snapshot_id)
        if not caller.account_wide and record.key_id != caller.key_id:
            raise _not_found(snapshot_id)
        return record


def _not_found(snapshot_id: str) -> SnapshotNotFound:
    return SnapshotNotFound(
        f"there is no snapshot with the id {snapshot_id!r}", hint="`runtime snapshot ls` shows ids and names"
    )
