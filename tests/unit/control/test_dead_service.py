"""While no service lives nobody can reach a sandbox: what ran or was stored then is shown, and given back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtimed.billing.kept import tab_of
from runtimed.billing.pricebook import default_book
from runtimed.billing.receipt import receipt
from runtimed.control.charging import Charging, ChargingParts
from runtimed.core.accounting import Receipt
from runtimed.core.clock import ManualClock
from runtimed.core.ids import SandboxId, new_id
from runtimed.core.lifecycle import State
from runtimed.core.money import Spending
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.specs import Shape
from runtimed.meter.counting import SampleCount
from runtimed.node.metering import HostMeter
from runtimed.store.accounts import Accounts
from runtimed.store.books import Books
from runtimed.store.database import Database, open_database, sqlite_url

LEASE_S = 3600
GB = 1_000_000_000


@dataclass(kw_only=True)
class Host:
    """A host's samples on its disk and the books, which both outlive the service that `serves`."""

    folder: Path
    database: Database
    clock: ManualClock
    record: SandboxRecord
    pid: int | None = 1
    """Of the machine: a process that is there, whose CPU time this test does not look at."""

    def serves(self) -> tuple[HostMeter, Charging]:
        """A service starts; the one before it is gone without a word."""
        meter = HostMeter(self.folder, self.clock, lambda sandbox_id: self.pid)
        books = Books(self.database)
        parts = ChargingParts(books=books, meter=meter, counter=SampleCount(), prices=default_book(), clock=self.clock)
        return meter, Charging(parts)

    async def receipt(self) -> Receipt:
        return receipt(tab_of((await Books(self.database).tabs([self.record.id]))[self.record.id]))


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    database, clock = await open_database(sqlite_url(tmp_path / "runtime.db")), ManualClock()
    accounts = Accounts(database, clock)
    account = await accounts.first_account()
    key, _ = await accounts.create_key(account, name="test", kind="full")
    now_s = clock.now_s()
    record = SandboxRecord(
        id=SandboxId(new_id()),
        account_id=account,
        key_id=key.id,
        name=None,
        labels={},
        env_names=(),
        image="default",
        shape=Shape(vcpu=2, memory_mib=4096, disk_mib=4096),
        lease_s=LEASE_S,
        on_lease_end="stop",
        auto_wake=True,
        user="sandbox",
        retention_days=30,
        state=State.STARTING,
        created_at_s=now_s,
        updated_at_s=now_s,
        last_active_at_s=now_s,
        ends_at_s=now_s + LEASE_S,
    )
    yield Host(folder=tmp_path / "usage", database=database, clock=clock, record=record)
    assert await Books(database).problems() == []
    await database.close()


async def test_a_machine_that_ran_without_a_service_pays_for_the_time_with_one(host: Host) -> None:
    meter, charging = host.serves()
    await charging.open(host.record, Spending())
    charging.began(host.record.id)
    await host.clock.advance(60)
    await meter.tick()
    await host.clock.advance(1200)  # nobody lives
    _, charging = host.serves()
    charging.began(host.record.id)
    await host.clock.advance(60)
    charging.stopping(host.record.id)
    await charging.settle(host.record.id)
    paper = await host.receipt()

    assert paper.running_ms == 120_000
    assert [line.micros for line in paper.lines if "could not be reached" in line.what] != []
    assert sum(line.micros for line in paper.lines if "could not be reached" in line.what) == 0


async def test_a_machine_that_the_guard_ended_is_charged_up_to_its_last_sample(host: Host) -> None:
    meter, charging = host.serves()
    await charging.open(host.record, Spending())
    charging.began(host.record.id)
    await host.clock.advance(60)
    await meter.tick()
    await host.clock.advance(LEASE_S)
    host.pid = None  # the guard ended it at its lease
    _, charging = host.serves()
    charging.stopping(host.record.id)
    await charging.settle(host.record.id)
    paper = await host.receipt()

    assert (paper.running_ms, paper.held_micros, paper.final) == (60_000, 0, True)
    assert paper.total_micros == sum(line.micros for line in paper.lines)


async def test_what_is_stored_while_no_service_lives_is_shown_and_given_back(host: Host) -> None:
    meter, charging = host.serves()
    await charging.open(host.record, Spending())
    charging.began(host.record.id)
    charging.pausing(host.record.id)
    await charging.paused(host.record, 40 * GB)
    await host.clock.advance(3600)
    await meter.tick()
    await charging.collect()
    before = (await host.receipt()).total_micros
    await host.clock.advance(7200)  # nobody lives
    _, charging = host.serves()
    await charging.collect()
    paper = await host.receipt()

    assert before == 40 * 100_000 // (30 * 24)
    assert paper.total_micros == before
    assert [line.micros for line in paper.lines[-2:]] == [40 * 200_000 // (30 * 24), -(40 * 200_000 // (30 * 24))]
