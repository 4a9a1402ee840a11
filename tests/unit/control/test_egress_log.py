"""Verdicts on their way into the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from runtimed.control.egress_log import BATCH, TIDY_EVERY_S, WAITING_MAX, EgressLog
from runtimed.core.clock import ManualClock
from runtimed.core.egress import EgressRecord, Happened
from runtimed.core.ids import SandboxId
from runtimed.core.tasks import spawn
from runtimed.core.wait import wait_for
from runtimed.store.egress_records import NotTaken

ONE, OTHER = SandboxId("one"), SandboxId("other")


class Shelf:
    """A store in memory, that a test can hold up or make fail."""

    def __init__(self) -> None:
        self.kept: list[EgressRecord] = []
        self.writes: list[int] = []
        self.tidied: list[object] = []
        self.failing: NotTaken | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.entered = asyncio.Event()

    async def add(self, records: list[EgressRecord]) -> None:
        self.entered.set()
        await self.open.wait()
        if self.failing is not None:
            raise self.failing
        self.writes.append(len(records))
        self.kept += records

    async def page(self, sandbox_id: SandboxId, *, after: int, limit: int) -> list[EgressRecord]:
        return [it for it in self.kept if it.sandbox_id == sandbox_id and it.sequence > after][:limit]

    async def newest(self) -> dict[SandboxId, int]:
        return {}

    async def trim(self, of: set[SandboxId]) -> None:
        self.tidied.append(of)

    async def purge(self, *, now_s: float) -> None:
        self.tidied.append(now_s)


def tell(log: EgressLog, *sequences: int, of: SandboxId = ONE) -> None:
    for sequence in sequences:
        happened = Happened(what="connection", host="a.test", port=443, allowed=True, rule="internet")
        log.told(EgressRecord(sequence=sequence, at_s=0, sandbox_id=of, happened=happened))


async def shown(log: EgressLog, of: SandboxId = ONE, *, after: int = 0, limit: int = WAITING_MAX) -> list[int]:
    return [it.sequence for it in await log.page(of, after=after, limit=limit)]


def numbers(shelf: Shelf) -> list[int]:
    return [it.sequence for it in shelf.kept]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(shelf: Shelf, clock: ManualClock) -> EgressLog:
    return EgressLog(shelf, clock)


@contextlib.asynccontextmanager
async def running(log: EgressLog) -> AsyncIterator[None]:
    task = spawn(log.run(), name="log")
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_what_waits_is_shown_with_what_is_stored_and_nothing_twice(log: EgressLog) -> None:
    tell(log, 1, 2)
    await log.flush()
    tell(log, 3, 4)
    tell(log, 1, of=OTHER)

    assert await shown(log) == [1, 2, 3, 4]
    assert await shown(log, after=1, limit=2) == [2, 3]
    assert await shown(log, OTHER) == [1]


async def test_what_is_being_written_is_shown(log: EgressLog, shelf: Shelf) -> None:
    shelf.open.clear()
    tell(log, 1)
    writing = spawn(log.flush(), name="flush")
    await shelf.entered.wait()
    tell(log, 2)

    assert await shown(log) == [1, 2] and numbers(shelf) == []
    shelf.open.set()
    await writing
    assert await shown(log) == [1, 2] and numbers(shelf) == [1]


async def test_many_are_written_in_batches_and_in_order(log: EgressLog, shelf: Shelf) -> None:
    tell(log, *range(2 * BATCH + 1))

    assert await log.flush() and numbers(shelf) == list(range(2 * BATCH + 1))
    assert shelf.writes == [BATCH, BATCH, 1]


@pytest.mark.parametrize("count", [1, BATCH])
async def test_the_log_writes_by_itself(log: EgressLog, shelf: Shelf, count: int) -> None:
    async with running(log):
        tell(log, *range(count))

        async def stored() -> bool | None:
            return len(shelf.kept) == count or None

        await wait_for("stored", stored, within_s=10, every_s=0.01)


async def test_where_the_store_takes_nothing_the_oldest_are_dropped_and_counted(log: EgressLog, shelf: Shelf) -> None:
    shelf.open.clear()
    tell(log, 0)
    writing = spawn(log.flush(), name="flush")
    await shelf.entered.wait()
    tell(log, *range(1, WAITING_MAX + 3))
    assert log.dropped == 2

    shelf.failing = NotTaken(OSError("no disk"), later=True)
    shelf.open.set()
    assert await writing is False
    assert log.dropped == 3, "what came back from the store found no room"

    shelf.failing = None
    assert await log.flush() and numbers(shelf) == list(range(3, WAITING_MAX + 3))


async def test_a_store_that_fails_for_a_time_gets_everything_later_in_order(log: EgressLog, shelf: Shelf) -> None:
    shelf.failing = NotTaken(OSError("no disk"), later=True)
    tell(log, *range(1, BATCH + 2))
    assert await log.flush() is False
    assert await shown(log) == list(range(1, BATCH + 2))

    shelf.failing = None
    await log.close()

    assert numbers(shelf) == list(range(1, BATCH + 2)) and log.dropped == 0


async def test_what_the_store_can_never_take_does_not_hold_up_the_rest(log: EgressLog, shelf: Shelf) -> None:
    shelf.failing = NotTaken(OSError("bad value"), later=False)
    tell(log, 1)
    assert await log.flush() and log.dropped == 1

    shelf.failing = None
    tell(log, 2)
    await log.flush()

    assert numbers(shelf) == [2]


async def test_a_stop_amid_a_write_loses_nothing(log: EgressLog, shelf: Shelf) -> None:
    shelf.open.clear()
    async with running(log):
        tell(log, *range(BATCH + 5))
        await shelf.entered.wait()
    shelf.open.set()

    await log.close()

    assert numbers(shelf) == list(range(BATCH + 5))


async def test_old_records_are_removed_from_time_to_time(log: EgressLog, shelf: Shelf, clock: ManualClock) -> None:
    tell(log, 1)
    await log.flush()
    async with running(log):

        async def tidied_twice() -> bool | None:
            await clock.advance(TIDY_EVERY_S)
            return len(shelf.tidied) >= 4 or None

        await wait_for("tidied", tidied_twice, within_s=5, every_s=0.01)

    assert shelf.tidied[0] == {ONE} and shelf.tidied[2] == set()
