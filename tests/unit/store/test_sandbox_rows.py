"""Rows of sandboxes: what is written is what is read, names are held once, pages have no gaps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from runtimed.core.errors import InvalidRequest, NameTaken
from runtimed.core.ids import SandboxId, new_id
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.sandbox import Caller, SandboxFilter, SandboxRecord
from runtimed.core.specs import Shape, Started
from runtimed.store.database import Database
from runtimed.store.sandboxes import SandboxStore
from runtimed.store.schema import metadata


@pytest.fixture
def rows(database: Database) -> SandboxStore:
    return SandboxStore(database)


def record(caller: Caller, *, name: str | None = None, at_s: float = 1.0, **labels: str) -> SandboxRecord:
    return SandboxRecord(
        id=SandboxId(new_id()),
        account_id=caller.account_id,
        key_id=caller.key_id,
        name=name,
        labels=labels,
        env_names=("A", "B"),
        image="default",
        shape=Shape(vcpu=2, memory_mib=4096, disk_mib=4096),
        lease_s=1800,
        on_lease_end="stop",
        auto_wake=True,
        user="sandbox",
        retention_days=30,
        state=State.RUNNING,
        created_at_s=at_s,
        updated_at_s=at_s,
        last_active_at_s=at_s,
        ends_at_s=at_s + 1800,
        started=Started(
            how="spare", image_id="img", steps_ms={"restore": 1.5}, clock_skew_ms=0.5, entropy_reseeded=True
        ),
    )


async def test_the_migrations_make_what_the_schema_says(database: Database, tmp_path: Path) -> None:
    with sa.create_engine(f"sqlite:///{tmp_path / 'runtime.db'}").connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


async def test_a_record_comes_back_as_it_was_written(rows: SandboxStore, caller: Caller) -> None:
    written = record(caller, name="one", color="blue", é="ü")
    await rows.add(written)

    assert await rows.get(written.id) == written


async def test_a_name_is_held_until_its_sandbox_has_stopped(rows: SandboxStore, caller: Caller) -> None:
    first = record(caller, name="one")
    await rows.add(first)
    with pytest.raises(NameTaken) as told:
        await rows.add(record(caller, name="one"))

    await rows.save(replace(first, state=State.STOPPED, stop_reason=StopReason.REQUESTED))
    await rows.add(record(caller, name="one"))

    assert told.value.details == {"sandboxId": first.id, "state": "running"}


async def test_sandboxes_without_a_name_do_not_clash(rows: SandboxStore, caller: Caller) -> None:
    await rows.add(record(caller))
    await rows.add(record(caller))


async def test_pages_show_each_sandbox_once_oldest_first(rows: SandboxStore, caller: Caller) -> None:
    # Several at the same moment: the id decides between them.
    written = [record(caller, at_s=float(at // 3)) for at in range(10)]
    for one in written:
        await rows.add(one)

    seen: list[SandboxRecord] = []
    cursor = None
    for _ in range(20):
        page = await rows.page(caller, SandboxFilter(), limit=3, cursor=cursor)
        seen += page.records
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == sorted(written, key=lambda r: (r.created_at_s, r.id))


async def test_all_labels_must_match(rows: SandboxStore, caller: Caller) -> None:
    both, one = record(caller, a="1", b="2"), record(caller, a="1")
    await rows.add(both)
    await rows.add(one)

    found = await rows.page(caller, SandboxFilter(labels={"a": "1", "b": "2"}), limit=10, cursor=None)

    assert [r.id for r in found.records] == [both.id]


async def test_stopped_ones_are_shown_only_when_asked_for(rows: SandboxStore, caller: Caller) -> None:
    stopped = replace(record(caller), state=State.STOPPED)
    await rows.add(stopped)

    async def shown(wanted: SandboxFilter) -> int:
        return len((await rows.page(caller, wanted, limit=10, cursor=None)).records)

    assert await shown(SandboxFilter()) == 0
    assert await shown(SandboxFilter(include_stopped=True)) == 1
    assert await shown(SandboxFilter(states=frozenset({State.STOPPED}))) == 1


async def test_a_key_that_is_not_account_wide_lists_only_its_own(rows: SandboxStore, caller: Caller) -> None:
    await rows.add(record(caller))
    other = replace(caller, key_id="other", account_wide=False)

    assert (await rows.page(other, SandboxFilter(), limit=10, cursor=None)).records == ()


@pytest.mark.parametrize("cursor", ["", "!", "bm90IGpzb24", "WzFd"])
async def test_a_cursor_that_is_not_ours_is_a_bad_request(rows: SandboxStore, caller: Caller, cursor: str) -> None:
    with pytest.raises(InvalidRequest):
        await rows.page(caller, SandboxFilter(), limit=3, cursor=cursor)
