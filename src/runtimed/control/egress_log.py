"""Carries the gateway's verdicts into the store, many at a time, and pages them for who asks.

    gateway --told--> waiting (bounded) --every second, or 200--> store
                         |                                          |
                         +------------------ page ------------------+

The gateway never waits for a disk: where the store takes nothing for long, the oldest that wait are dropped and
counted. They are in the JSON lines all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Protocol

from runtimed.core.clock import Clock
from runtimed.core.egress import EgressDoor, EgressRecord
from runtimed.core.ids import SandboxId
from runtimed.store.egress_records import NotTaken

WRITE_AFTER_S = 1.0
BATCH = 200
"""So many are written at once, and without waiting for others."""
WAITING_MAX = 10_000
TIDY_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class Records(Protocol):
    """Where they go: store.egress_records."""

    async def add(self, records: list[EgressRecord]) -> None: ...

    async def page(self, sandbox_id: SandboxId, *, after: int, limit: int) -> list[EgressRecord]: ...

    async def newest(self) -> dict[SandboxId, int]: ...

    async def trim(self, of: set[SandboxId]) -> None: ...

    async def purge(self, *, now_s: float) -> None: ...


class EgressLog:
    """The records of one service."""

    def __init__(self, store: Records, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._waiting: deque[EgressRecord] = deque()
        self._under_way: list[EgressRecord] = []
        self._some, self._batch = asyncio.Event(), asyncio.Event()
        self._writing = asyncio.Lock()
        self._written_of: set[SandboxId] = set()
        self.dropped = 0
        """Records that never reached the store."""

    async def follow(self, door: EgressDoor) -> None:
        """Keep all that the gateway decides from now on, numbered above what is kept already."""
        # What a service that was killed had shown and not stored has numbers too: they are left out.
        newest = await self._store.newest()
        door.go_on_after({sandbox_id: number + WAITING_MAX for sandbox_id, number in newest.items()})
        door.watch(self.told)

    def told(self, record: EgressRecord) -> None:
        """Keep it, in a moment. Never waits."""
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(record)
        self._some.set()
        if len(self._waiting) >= BATCH:
            self._batch.set()

    async def page(self, sandbox_id: SandboxId, *, after: int, limit: int) -> list[EgressRecord]:
        """Those with a higher sequence, oldest first; of more than `limit`, the oldest. Also those that wait."""
        # Looked at before the store is: what is written meanwhile is then in both, and not in neither.
        waiting = [*self._under_way, *self._waiting]
        found = {record.sequence: record for record in await self._store.page(sandbox_id, after=after, limit=limit)}
        found |= {it.sequence: it for it in waiting if it.sandbox_id == sandbox_id and it.sequence > after}
        return [found[sequence] for sequence in sorted(found)[:limit]]

    async def run(self) -> None:
        """Write, and remove what is past its time, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_for_ever(), name="write egress records")
            group.create_task(self._tidy_for_ever(), name="remove old egress records")

    async def close(self) -> None:
        """Write what waits. Once `run` has ended; what the store refuses now is lost to it."""
        await self.flush()
        if self._waiting:
            _log.error("%d egress records could not be stored; they are in the JSON lines", len(self._waiting))

    async def flush(self) -> bool:
        """Write what waits now; whether the store took it."""
        async with self._writing:
            for _ in range(-(-len(self._waiting) // BATCH)):
                if not await self._write_batch():
                    return False
        return True

    async def tidy(self) -> None:
        """Remove what is too much or too old. Idempotent."""
        written, self._written_of = self._written_of, set()
        try:
            await self._store.trim(written)
            await self._store.purge(now_s=self._clock.now_s())
        except NotTaken as failure:
            self._written_of |= written
            _log.error("old egress records cannot be removed now: %s", failure)

    async def _write_for_ever(self) -> None:
        while True:
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_AFTER_S):
                    await self._batch.wait()
            self._batch.clear()
            dropped = self.dropped
            if not await self.flush():
                await asyncio.sleep(WRITE_AFTER_S)
            if self.dropped > dropped:
                _log.error("%d egress records were not stored, %d until now", self.dropped - dropped, self.dropped)
            if not self._waiting:
                self._some.clear()
            elif len(self._waiting) >= BATCH:
                self._batch.set()

    async def _tidy_for_ever(self) -> None:
        while True:
            await self._clock.sleep(TIDY_EVERY_S)
            await self.tidy()

    async def _write_batch(self) -> bool:
        """Whether the store took what was first; False leaves it waiting."""
        self._under_way = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        try:
            await self._store.add(self._under_way)
        except NotTaken as failure:
            if failure.later:
                self._put_back()
                _log.error("egress records cannot be stored now: %s", failure)
                return False
            # Trying these again would hold up all that come after.
            self.dropped += len(self._under_way)
            _log.error("egress records were refused by the database: %s", failure)
        except asyncio.CancelledError:
            self._put_back()
            raise
        else:
            self._written_of |= {record.sandbox_id for record in self._under_way}
        self._under_way = []
        return True

    def _put_back(self) -> None:
        room = max(0, WAITING_MAX - len(self._waiting))
        back = self._under_way[-room:] if room else []
        self.dropped += len(self._under_way) - len(back)
        self._waiting.extendleft(reversed(back))
        self._under_way = []
