"""Copies running sandboxes: all copies start or none does, and the source goes on either way."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace

from runtimed.control.finding import Finder
from runtimed.control.life import Life, LifeParts, Lives, stopped_error
from runtimed.control.room import admit
from runtimed.control.sleep import Sleep, joined, told
from runtimed.control.snapshots import Snapshots
from runtimed.core.clock import Clock
from runtimed.core.errors import RuntimedError, SandboxStopped, StartFailed
from runtimed.core.ids import SandboxId, new_id
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.limits import NAME_MAX_CHARS, RETENTION_DEFAULT_DAYS
from runtimed.core.sandbox import Caller, ForkSpec, SandboxRecord
from runtimed.core.snapshots import Copies, SnapshotRecord, SnapshotSpec
from runtimed.core.tasks import spawn

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Making:
    """How far a fork has come: what there is to undo."""

    copies: list[Life] = field(default_factory=list)
    snapshot: SnapshotRecord | None = None


class Forks:
    """Every method raises NotFound for a sandbox that the caller may not see."""

    def __init__(self, *, lives: Lives, sleep: Sleep, snapshots: Snapshots, parts: LifeParts) -> None:
        self._lives, self._sleep, self._snapshots, self._parts = lives, sleep, snapshots, parts
        self._finder = Finder(lives, parts.store)

    async def fork(self, caller: Caller, sandbox_id: str, spec: ForkSpec) -> Copies:
        """Copies of a sandbox, which is woken for that; answers them once they run.

        With `keep_snapshot` what they began as is kept too; it is ready when this returns.

        Raises:
            NameTaken, NoCapacity, SandboxStopped, SandboxPaused, StartFailed: there are no copies, the source goes on.
        """
        record, source = await self._finder.life(caller, sandbox_id)
        if source is None:
            raise stopped_error(record)
        self._parts.ways.check_secrets(record.account_id, spec.secrets)
        making = _Making()
        move = spawn(told(self._fork(caller, source, spec, making)), name=f"fork {record.id}")
        await joined(move, source)
        return Copies(sandboxes=tuple(copy.record for copy in making.copies), snapshot=making.snapshot)

    async def _fork(self, caller: Caller, source: Life, spec: ForkSpec, making: _Making) -> None:
        await self._sleep.running(source)
        async with self._lives.turn(source):
            if source.record.state is not State.RUNNING:
                raise stopped_error(source.record)
            source.active_at_s, source.active_mono_s = self._clock.now_s(), self._clock.monotonic_s()
            records = [self._record(caller, source.record, spec, number) for number in range(spec.count)]
            admit(self._parts.node, self._lives.all(), records)
            try:
                for record in records:
                    making.copies.append(await self._lives.reserve(record, source.env))
                if spec.keep_snapshot:
                    kept_as = SnapshotSpec(name=None, retention_days=RETENTION_DEFAULT_DAYS)
                    making.snapshot = await self._snapshots.begin(caller, source.record, kept_as)
                await self._start(source, making)
            except BaseException as failure:
                await asyncio.shield(self._undo(making, failure))
                raise

    async def _start(self, source: Life, making: _Making) -> None:
        asked = [self._lives.prepare(copy, "fork") for copy in making.copies]
        keep_as = making.snapshot.id if making.snapshot else None
        forked = await self._parts.node.fork(source.record.id, [one.machine for one in asked], keep_as=keep_as)
        if making.snapshot is not None and forked.kept is not None:
            making.snapshot = await self._snapshots.finish(making.snapshot, forked.kept)
        for copy, how, one in zip(making.copies, forked.started, asked, strict=True):
            await self._lives.up(copy, how, one)
            if copy.record.state is not State.RUNNING:
                raise SandboxStopped("a copy was stopped while it started", details={"sandboxId": copy.record.id})

    async def _undo(self, making: _Making, failure: BaseException) -> None:
        """Nothing of a fork that failed is left, its records included."""
        _log.warning("a sandbox was not forked: %s", failure)
        told_as = failure if isinstance(failure, RuntimedError) else StartFailed("the copies did not start")
        try:
            for copy in making.copies:
                copy.failure = told_as
                await asyncio.wait({self._lives.end(copy, StopReason.STARTUP_FAILED)})
                if copy.record.state is State.STOPPED and copy.record.ready_at_s is None:
                    await self._parts.store.drop(copy.record.id)
        finally:
            if making.snapshot is not None:
                await self._snapshots.give_up(making.snapshot)

    @property
    def _clock(self) -> Clock:
        return self._parts.clock

    def _record(self, caller: Caller, source: SandboxRecord, spec: ForkSpec, number: int) -> SandboxRecord:
        now_s = self._clock.now_s()
        return replace(
            source,
            id=SandboxId(new_id()),
            key_id=caller.key_id,
            name=copy_name(spec.name, number),
            labels=dict(source.labels if spec.labels is None else spec.labels),
            network=replace(source.network, secrets=spec.secrets, version=1, updated_at_s=now_s),
            state=State.STARTING,
            source_id=source.id,
            created_at_s=now_s,
            updated_at_s=now_s,
            last_active_at_s=now_s,
            ends_at_s=now_s + source.lease_s,
            ready_at_s=None,
            ended_at_s=None,
            paused_at_s=None,
            stop_reason=None,
            started=None,
            note=None,
            env_sealed=None,
        )


def copy_name(name: str | None, number: int) -> str | None:
    """`name`, `name-1`, `name-2`, ..., never longer than a name may be."""
    if name is None or number == 0:
        return name
    end = f"-{number}"
    return name[: NAME_MAX_CHARS - len(end)] + end
