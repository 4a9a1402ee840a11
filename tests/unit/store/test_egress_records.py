"""Verdicts kept in the database."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, update

from runtimed.core.egress import EgressRecord, Happened
from runtimed.core.ids import SandboxId
from runtimed.core.sandbox import DAY_S, Caller
from runtimed.store.database import Database
from runtimed.store.egress_records import EgressRecordStore, NotTaken
from runtimed.store.schema import sandboxes

ONE, OTHER = SandboxId("one"), SandboxId("other")
ENDED_S = 1000.0


def record(sequence: int, of: SandboxId = ONE, **what: object) -> EgressRecord:
    it = {"what": "connection", "host": "a.test", "port": 443, "allowed": False, "rule": "not in allow", **what}
    return EgressRecord(sequence=sequence, at_s=5.5, sandbox_id=of, happened=Happened(**it))


def records(*sequences: int, of: SandboxId = ONE) -> list[EgressRecord]:
    return [record(sequence, of) for sequence in sequences]


async def kept(store: EgressRecordStore, of: SandboxId = ONE, *, after: int = 0, limit: int = 100) -> list[int]:
    return [it.sequence for it in await store.page(of, after=after, limit=limit)]


async def add_sandbox(database: Database, caller: Caller, sandbox_id: SandboxId, **what: object) -> None:
    row = {
        **{"id": sandbox_id, "account_id": caller.account_id, "key_id": caller.key_id, "state": "running"},
        **{"image": "default", "vcpu": 1, "memory_mib": 1, "disk_mib": 1, "lease_s": 1, "on_lease_end": "delete"},
        **{"auto_wake": False, "default_user": "root", "retention_days": 2, "env_names": [], "disk_kept": False},
        **{"created_at_s": 0.0, "updated_at_s": 0.0, "last_active_at_s": 0.0, "ends_at_s": 0.0},
    }
    async with database.writing() as db:
        await db.execute(insert(sandboxes).values(**row, **what))


@pytest.fixture
def store(database: Database) -> EgressRecordStore:
    return EgressRecordStore(database, kept_per_sandbox=3)


async def test_a_record_comes_back_as_it_was(store: EgressRecordStore) -> None:
    written = record(
        7, host='odd\x00\ud800"', bytes_out=2**40, bytes_in=1, address="192.0.2.1", secrets=("KEY",), allowed=True
    )
    await store.add([written])

    assert await store.page(ONE, after=0, limit=10) == [written]


async def test_a_page_is_of_one_sandbox_oldest_first_after_a_sequence(store: EgressRecordStore) -> None:
    await store.add([*records(1, 2), *records(1, 2, 3, of=OTHER), *records(3, 4)])

    assert await kept(store, limit=3) == [1, 2, 3]
    assert await kept(store, after=3) == [4]
    assert await kept(store, OTHER) == [1, 2, 3]


async def test_a_write_that_is_repeated_counts_once(store: EgressRecordStore) -> None:
    await store.add(records(1, 2))
    await store.add(records(1, 2))
    await store.add(records(3))
    await store.add([])

    assert await kept(store) == [1, 2, 3]


async def test_only_the_newest_of_a_sandbox_stay_whatever_gaps_their_numbers_have(store: EgressRecordStore) -> None:
    await store.add([*records(1, 2, 900, 901), *records(1, 2, 3, of=OTHER)])

    await store.trim([ONE, OTHER])

    assert await kept(store) == [2, 900, 901]
    assert await kept(store, OTHER) == [1, 2, 3]


async def test_records_go_with_their_sandbox(store: EgressRecordStore, database: Database, caller: Caller) -> None:
    await add_sandbox(database, caller, ONE)
    await add_sandbox(database, caller, OTHER)
    await store.add([*records(1), *records(1, of=OTHER)])
    await store.purge(now_s=ENDED_S)
    assert await kept(store) == await kept(store, OTHER) == [1]

    async with database.writing() as db:
        await db.execute(update(sandboxes).where(sandboxes.c.id == ONE).values(deleted_at_s=ENDED_S))
    await store.purge(now_s=ENDED_S)

    assert await kept(store) == [] and await kept(store, OTHER) == [1]


@pytest.mark.parametrize(
    ("now_s", "disk_kept", "left"),
    [(ENDED_S + 2 * DAY_S - 1, False, [1]), (ENDED_S + 2 * DAY_S, False, []), (ENDED_S + 9 * DAY_S, True, [1])],
)
async def test_records_of_a_sandbox_that_ended_stay_as_long_as_it_was_to_be_kept(
    store: EgressRecordStore, database: Database, caller: Caller, now_s: float, disk_kept: bool, left: list[int]
) -> None:
    await add_sandbox(database, caller, ONE, ended_at_s=ENDED_S)
    async with database.writing() as db:
        await db.execute(update(sandboxes).values(state="stopped", disk_kept=disk_kept))
    await store.add(records(1))

    await store.purge(now_s=now_s)

    assert await kept(store) == left


async def test_the_newest_number_is_known_of_every_sandbox_that_can_go_on(
    store: EgressRecordStore, database: Database, caller: Caller
) -> None:
    ended = SandboxId("ended")
    for sandbox_id in (ONE, OTHER, ended):
        await add_sandbox(database, caller, sandbox_id)
    async with database.writing() as db:
        await db.execute(update(sandboxes).where(sandboxes.c.id == ended).values(state="stopped"))
    await store.add([*records(4, 9), *records(3, of=ended)])

    assert await store.newest() == {ONE: 9, OTHER: 0}


async def test_a_write_that_can_never_succeed_is_told_from_one_that_may_later(
    store: EgressRecordStore, database: Database
) -> None:
    with pytest.raises(NotTaken) as twice:
        await store.add([record(1), record(1)])
    async with database.writing() as db:
        await db.exec_driver_sql("DROP TABLE egress_records")
    with pytest.raises(NotTaken) as gone:
        await store.add(records(1))

    assert (twice.value.later, gone.value.later) == (False, True)
    assert "a.test" not in str(twice.value) + str(gone.value)
