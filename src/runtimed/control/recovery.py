"""Finds the sandboxes of an earlier service: what runs goes on, what is kept stays kept, the rest is settled and said.

the row says          the host has             then
starting              anything                 ended as startup_failed: nobody had its answer
stopping              anything                 ended
any other             a machine                running, under its lease
any other             memory and disk          paused
any other             a disk alone             stopped as host_lost (lease_expired when that is over), disk kept
any other             nothing                  the same, with nothing kept
stopped, disk kept    a disk                   stopped, as it was
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runtimed.control.life import Life, LifeParts, Lives
from runtimed.core.errors import RuntimedError
from runtimed.core.ids import SandboxId
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.specs import Stored

SHUTDOWN_WITHIN_S = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the service found when it started, by outcome."""

    outcomes: Mapping[str, int]
    strays: int
    """Machines of sandboxes that are not recorded, or are stopped; ended."""

    def __str__(self) -> str:
        parts = [f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items())]
        if self.strays:
            parts.append(f"{self.strays} machines without a sandbox ended")
        return ", ".join(parts) or "nothing"


class Recovery:
    """The first thing that a service does. May run twice."""

    def __init__(self, lives: Lives, parts: LifeParts) -> None:
        self._lives, self._parts = lives, parts

    async def recover(self) -> Found:
        """Bring rows and host together, and say what came of it."""
        running = await self._parts.node.adopt()
        outcomes: Counter[str] = Counter()
        known: set[SandboxId] = set()
        for record in await self._parts.store.unfinished():
            known.add(record.id)
            if self._lives.get(record.id) is None:
                outcomes[await self._settle(record, running)] += 1
        strays = running - known
        for sandbox_id in strays:
            await self._parts.node.stop(sandbox_id)
        found = Found(outcomes=dict(outcomes), strays=len(strays))
        _log.info("found of an earlier service: %s", found)
        return found

    async def leave(self, *, end: bool) -> int:
        """The service stops: sandboxes go on until their leases end, or with `end` they end with it.

        Answers how many go on.
        """
        up = [life for life in self._lives.all() if life.record.state not in (State.STOPPED, State.PAUSED)]
        if not end:
            return sum(life.record.state in (State.RUNNING, State.PAUSING) for life in up)
        ends = {self._lives.end(life, StopReason.HOST_STOPPED, keep_disk=life.record.persistent) for life in up}
        if ends:
            await asyncio.wait(ends, timeout=SHUTDOWN_WITHIN_S)
        return 0

    async def _settle(self, record: SandboxRecord, running: frozenset[SandboxId]) -> str:
        life = self._lives.enter(record, self._env(record))
        life.starts = max((start.number for start in await self._parts.store.starts(record.id)), default=0)
        if record.deleted_at_s is not None or record.state in (State.STARTING, State.STOPPING):
            starting = record.state is State.STARTING
            reason = StopReason.STARTUP_FAILED if starting else record.stop_reason or StopReason.REQUESTED
            self._lives.end(life, reason, keep_disk=record.persistent and not starting and record.deleted_at_s is None)
            return "ended"
        if record.id in running:
            return await self._runs(life)
        return await self._kept(life, self._parts.node.stored(record.id))

    async def _runs(self, life: Life) -> str:
        """A machine that went on without us, under the lease and the rules that its row has."""
        record = life.record
        await self._write(
            life, state=State.RUNNING, stop_reason=None, paused_at_s=None, disk_kept=False, ended_at_s=None
        )
        self._parts.ways.bind(record)
        left_s = life.ends_mono_s - self._parts.clock.monotonic_s()
        self._parts.node.lease(record.id, left_s)
        try:
            if record.state is State.PAUSED:  # its memory was not written in time
                await self._parts.till.woken(record, left_s)
        except RuntimedError as refused:
            _log.warning("sandbox %s goes on without a hold: %s", record.id, refused.message)
        self._parts.till.began(record.id)
        try:
            await self._parts.node.guest(record.id).update(env=self._lives.env_of(life), user=record.user)
        except RuntimedError as failure:
            _log.warning("sandbox %s was not told its environment: %s", record.id, failure)
        return "running"

    async def _kept(self, life: Life, stored: Stored | None) -> str:
        record, now_s = life.record, self._parts.clock.now_s()
        owned_bytes = stored.memory_bytes + stored.disk_bytes if stored else 0
        if stored is not None and stored.mode == "memory" and record.state is not State.STOPPED:
            reason = record.stop_reason or StopReason.REQUESTED
            paused_at_s = record.paused_at_s or now_s
            await self._write(
                life, state=State.PAUSED, stop_reason=reason, paused_at_s=paused_at_s, stored_bytes=owned_bytes
            )
            await self._parts.till.paused(life.record, owned_bytes)
            return "paused"
        lost = StopReason.LEASE_EXPIRED if record.ends_at_s <= now_s else StopReason.HOST_LOST
        if record.state is State.PAUSED:
            lost = StopReason.HOST_LOST
        stopped = record.state is State.STOPPED
        await self._write(
            life,
            state=State.STOPPED,
            stop_reason=record.stop_reason if stopped else lost,
            ended_at_s=record.ended_at_s if stopped else now_s,
            paused_at_s=None,
            disk_kept=stored is not None,
            stored_bytes=owned_bytes,
        )
        if stored is None:
            await self._parts.till.settle(record.id)
            return "lost"
        await self._parts.till.paused(life.record, owned_bytes)
        return "stopped with its disk kept"

    async def _write(self, life: Life, **fields: object) -> None:
        """What is, whatever the table would allow: the earlier service cannot be asked how it came to this."""
        await self._lives.correct(life, replace(life.record, **fields))  # type: ignore[arg-type]

    def _env(self, record: SandboxRecord) -> dict[str, str]:
        if not record.env_sealed:
            return {}
        opened = self._parts.seal.open(record.env_sealed, purpose=f"env of {record.id}")
        return dict(json.loads(opened))
