"""Money is taken aside before anything starts, charged as it is measured, and comes back at the end in any case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runtimed.billing.pricebook import default_book
from runtimed.billing.quote import worst_case
from runtimed.billing.rating import Terms
from runtimed.control.charging import Charging, ChargingParts
from runtimed.core import ledger
from runtimed.core.clock import ManualClock
from runtimed.core.errors import (
    BudgetExceeded,
    InsufficientFunds,
    InvalidRequest,
    QuotaExceeded,
    SpendingLimitReached,
    TrialExhausted,
)
from runtimed.core.ids import AccountId, KeyId, SandboxId, new_id
from runtimed.core.ledger import Entry
from runtimed.core.lifecycle import State
from runtimed.core.money import Micros, Spending
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.specs import Shape
from runtimed.meter.counting import SampleCount
from runtimed.sim.meter import SimMeter
from runtimed.store.accounts import Accounts
from runtimed.store.books import AccountTerms, Books, UsageQuery
from runtimed.store.database import open_database, sqlite_url

HOUR_S = 3600
LEASE_S = 1800
RATES = default_book().periods[-1].rates
WORST = worst_case(Terms(rates=RATES, vcpu=2, memory_mib=4096), LEASE_S * 1000)


@dataclass(kw_only=True)
class Till:
    """An account with a key, and a till over its books."""

    books: Books
    meter: SimMeter
    clock: ManualClock
    charging: Charging
    account: AccountId
    key: KeyId
    opened: list[SandboxId] = field(default_factory=list)

    def record(self, **changed: Any) -> SandboxRecord:
        now_s = self.clock.now_s()
        fields: dict[str, Any] = {
            "id": SandboxId(new_id()),
            "account_id": self.account,
            "key_id": self.key,
            "name": None,
            "labels": {},
            "env_names": (),
            "image": "default",
            "shape": Shape(vcpu=2, memory_mib=4096, disk_mib=4096),
            "lease_s": LEASE_S,
            "on_lease_end": "stop",
            "auto_wake": True,
            "user": "sandbox",
            "retention_days": 30,
            "state": State.STARTING,
            "created_at_s": now_s,
            "updated_at_s": now_s,
            "last_active_at_s": now_s,
            "ends_at_s": now_s + LEASE_S,
        }
        return SandboxRecord(**{**fields, **changed})

    async def run(self, spending: Spending | None = None, **changed: Any) -> SandboxRecord:
        """A sandbox that was paid for and whose machine is ready."""
        record = self.record(**changed)
        await self.charging.open(record, spending or Spending())
        self.charging.began(record.id)
        self.opened.append(record.id)
        return record

    async def stop(self, record: SandboxRecord) -> None:
        self.charging.stopping(record.id)
        await self.charging.settle(record.id)

    async def tab(self, record: SandboxRecord) -> tuple[int, int]:
        kept = (await self.books.tabs([record.id]))[record.id]
        return kept.charged, kept.held

    async def terms(self, *, prepaid: bool = False, sandboxes_max: int | None = None, credit: int = 0) -> None:
        async with self.books.open(self.account) as books:
            await books.set_terms(AccountTerms(prepaid=prepaid, sandboxes_max=sandboxes_max))
            if credit:
                target = ledger.credit(self.account)
                await books.post([self.grant(target, credit)])

    async def day_limit(self, micros: int) -> None:
        async with self.books.open(self.account) as books:
            await books.set_day_limit(self.key, Micros(micros))

    def grant(self, target: ledger.LedgerAccount, amount: int) -> Entry:
        return Entry(
            key=new_id(),
            at_s=self.clock.now_s(),
            source=ledger.GRANTED,
            target=target,
            amount=amount,
            reason="grant",
            account_id=self.account,
        )

    async def balance(self, account: ledger.LedgerAccount) -> int:
        async with self.books.open(self.account) as books:
            return await books.balance(account)


@pytest.fixture
async def till(tmp_path: Path) -> AsyncIterator[Till]:
    database = await open_database(sqlite_url(tmp_path / "runtime.db"))
    clock = ManualClock()
    accounts = Accounts(database, clock)
    account = await accounts.first_account()
    key, _ = await accounts.create_key(account, name="test", kind="full")
    books, meter = Books(database), SimMeter(clock)
    parts = ChargingParts(books=books, meter=meter, counter=SampleCount(), prices=default_book(), clock=clock)
    made = Till(books=books, meter=meter, clock=clock, charging=Charging(parts), account=account, key=KeyId(key.id))
    yield made
    assert await books.problems() == []
    await database.close()


async def test_an_hour_that_waits_costs_the_promised_three_cents_and_an_eighth(till: Till) -> None:
    record = await till.run(lease_s=HOUR_S)
    await till.clock.advance(HOUR_S)
    await till.stop(record)

    assert await till.tab(record) == (31_250, 0)


async def test_cpu_is_charged_as_it_was_measured(till: Till) -> None:
    record = await till.run(lease_s=HOUR_S)
    await till.clock.advance(HOUR_S)
    till.meter.burn(record.id, 20_000_000)
    await till.stop(record)

    assert await till.tab(record) == (31_250 + 97, 0)


async def test_a_create_holds_the_worst_case_and_a_stop_gives_the_rest_back(till: Till) -> None:
    await till.terms(prepaid=True, credit=1_000_000)
    record = await till.run()
    held = await till.balance(ledger.credit(till.account))
    await till.clock.advance(60)
    await till.stop(record)
    await till.stop(record)  # twice is once

    assert held == 1_000_000 - WORST
    assert await till.balance(ledger.credit(till.account)) == 1_000_000 - 520
    assert await till.balance(ledger.held(record.id)) == 0


async def test_a_hundred_creates_at_once_with_a_limit_for_seven_make_exactly_seven(till: Till) -> None:
    await till.day_limit(8 * WORST - 1)
    records = [till.record() for _ in range(100)]
    done = await asyncio.gather(*(till.charging.open(r, Spending()) for r in records), return_exceptions=True)
    made = [record for record, outcome in zip(records, done, strict=True) if outcome is None]

    assert len(made) == 7
    assert sum(isinstance(outcome, SpendingLimitReached) for outcome in done) == 93
    assert sum(kept.held for kept in await till.books.open_tabs()) == 7 * WORST

    for record in made:
        await till.stop(record)
    assert await till.books.open_tabs() == []
    assert await till.balance(ledger.owed(till.account)) == 0


async def test_what_was_charged_counts_against_the_limit_for_24_hours_and_no_longer(till: Till) -> None:
    await till.day_limit(WORST + 2000)
    first = await till.run()
    await till.clock.advance(LEASE_S)
    till.meter.burn(first.id, 2 * LEASE_S * 1_000_000)
    await till.stop(first)
    with pytest.raises(SpendingLimitReached):
        await till.run()
    await till.clock.advance(24 * HOUR_S)

    await till.run()


async def test_without_credit_a_prepaid_account_starts_nothing(till: Till) -> None:
    await till.terms(prepaid=True, credit=WORST - 1)
    with pytest.raises(InsufficientFunds):
        await till.run(Spending(funding="paid"))

    assert await till.books.open_tabs() == []


async def test_trial_hours_are_held_used_and_given_back_and_never_become_credit(till: Till) -> None:
    await till.terms(prepaid=True, credit=1_000_000)
    record = await till.run(Spending(funding="trial"), lease_s=HOUR_S)
    left = await till.balance(ledger.trial(till.account))
    await till.clock.advance(600)
    await till.stop(record)

    assert left == 49 * HOUR_S * 1000
    assert await till.balance(ledger.trial(till.account)) == (50 * HOUR_S - 600) * 1000
    assert await till.balance(ledger.credit(till.account)) == 1_000_000

    for _ in range(49):
        await till.run(Spending(funding="trial"), lease_s=HOUR_S)
    with pytest.raises(TrialExhausted):
        await till.run(Spending(funding="trial"), lease_s=HOUR_S)


async def test_a_first_lease_above_its_budget_starts_nothing(till: Till) -> None:
    with pytest.raises(BudgetExceeded):
        await till.run(Spending(max_cost_micros=Micros(WORST - 1)))
    await till.run(Spending(max_cost_micros=WORST))

    assert len(await till.books.open_tabs()) == 1


async def test_a_cap_on_its_life_is_told_once_it_is_spent_and_never_passed(till: Till) -> None:
    record = await till.run(Spending(max_total_micros=Micros(5_000)))
    await till.clock.advance(60)
    await till.meter.tick()
    early = await till.charging.collect()
    await till.clock.advance(900)
    await till.meter.tick()
    spent = await till.charging.collect()

    assert (early, spent) == (frozenset(), frozenset({record.id}))
    assert await till.tab(record) == (5_000, 0)
    with pytest.raises(BudgetExceeded):
        await till.charging.lease_changed(record, LEASE_S)


async def test_a_cap_below_what_is_held_is_refused_naming_the_field(till: Till) -> None:
    record = await till.run()
    with pytest.raises(InvalidRequest) as refused:
        await till.charging.lifetime_cap(record, Micros(WORST - 1), field="maxTotalCostMicros")
    await till.charging.lifetime_cap(record, WORST, field="maxTotalCostMicros")

    assert refused.value.details["issues"][0]["field"] == "maxTotalCostMicros"  # type: ignore[index]


async def test_more_sandboxes_at_once_than_allowed_are_refused(till: Till) -> None:
    await till.terms(sandboxes_max=2)
    first = await till.run()
    await till.run()
    with pytest.raises(QuotaExceeded):
        await till.run()
    await till.stop(first)

    await till.run()


async def test_an_extension_past_the_limit_is_refused_and_holds_nothing_more(till: Till) -> None:
    await till.day_limit(WORST)
    record = await till.run()
    with pytest.raises(SpendingLimitReached):
        await till.charging.lease_changed(record, 2 * LEASE_S)
    await till.charging.lease_changed(record, LEASE_S // 2)

    _, held = await till.tab(record)
    assert abs(held - WORST // 2) <= 1


async def test_a_create_that_failed_costs_nothing(till: Till) -> None:
    record = till.record()
    await till.charging.open(record, Spending())
    await till.clock.advance(30)  # its machine was never ready
    await till.charging.settle(record.id)

    assert await till.tab(record) == (0, 0)


async def test_samples_that_come_again_are_not_charged_again(till: Till) -> None:
    record = await till.run()
    till.meter.duplicate = True
    for _ in range(6):
        await till.clock.advance(10)
        await till.meter.tick()
        await till.charging.collect()
    await till.stop(record)
    runs = await till.books.usage(UsageQuery(account_id=till.account, since_s=0, until_s=till.clock.now_s() + 1))
    hashes = [sample_hash for run in runs for sample_hash in run.sample_hashes]

    assert (await till.tab(record))[0] == 520
    assert len(set(hashes)) == len(hashes) == 8  # ready, six ticks, stopped
    assert sum(run.used.running_ms for run in runs) == 60_000
    assert sum(run.micros for run in runs) == 520


async def test_a_crash_between_the_charge_and_its_acknowledgement_charges_once(
    till: Till, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await till.run()
    await till.clock.advance(60)
    await till.meter.tick()
    with monkeypatch.context() as crash:
        crash.setattr(till.meter, "collected", _crash)
        with pytest.raises(RuntimeError):
            await till.charging.collect()
    again = Charging(
        ChargingParts(
            books=till.books, meter=till.meter, counter=SampleCount(), prices=default_book(), clock=till.clock
        )
    )
    await again.collect()

    assert (await till.tab(record))[0] == 520


async def _crash(_: object) -> None:
    raise RuntimeError("killed here")


async def test_an_interval_ends_with_its_lease_whatever_died(till: Till) -> None:
    record = await till.run()
    await till.clock.advance(10 * LEASE_S)
    await till.stop(record)

    assert (await till.tab(record))[0] == 31_250 // 2


async def test_a_wall_clock_that_jumps_an_hour_changes_no_charge(till: Till) -> None:
    record = await till.run(lease_s=HOUR_S)
    for jump in (3600, -7200, 3600):
        till.clock._now_s += jump
        await till.clock.advance(600)
        await till.meter.tick()
        await till.charging.collect()
    await till.stop(record)

    assert (await till.tab(record))[0] == 31_250 // 2


GB = 10**9
DAY_S = 24 * HOUR_S


async def asleep(till: Till, record: SandboxRecord, stored_bytes: int = 0) -> None:
    till.charging.pausing(record.id)
    await till.charging.paused(record, 0)  # its vCPUs have stopped
    if stored_bytes:
        await till.charging.paused(record, stored_bytes)  # its memory is written


async def test_a_pause_gives_back_the_lease_and_a_wake_holds_a_new_one(till: Till) -> None:
    record = await till.run()
    await till.clock.advance(600)
    await asleep(till, record)
    slept = await till.tab(record)
    await till.clock.advance(DAY_S)
    await till.charging.woken(record, LEASE_S)
    till.charging.began(record.id)
    woken = await till.tab(record)
    await till.clock.advance(600)
    await till.stop(record)

    assert slept == (31_250 // 6, 0)
    assert woken[0] == 31_250 // 6
    assert 0 <= woken[1] - WORST <= 1
    assert await till.tab(record) == (31_250 // 3, 0)  # nothing for the day in between, which stored nothing


async def test_what_a_paused_sandbox_stores_costs_the_operators_rate(till: Till) -> None:
    record = await till.run()
    await asleep(till, record, 30 * GB)
    for _ in range(48):
        await till.clock.advance(HOUR_S)
        await till.meter.tick()
        await till.charging.collect()
        await till.charging.renew_storage()
    charged, held = await till.tab(record)
    await till.charging.settle(record.id)

    assert charged == 2 * 100_000  # 30 GB for two days are 2 GB for 30 days
    assert 0 < held <= 100_000 + 1
    assert (await till.tab(record))[1] == 0


async def test_storage_that_nobody_can_pay_for_is_kept_and_not_charged(till: Till) -> None:
    await till.terms(prepaid=True, credit=WORST)
    record = await till.run()
    await till.clock.advance(LEASE_S)
    till.meter.burn(record.id, 2 * LEASE_S * 1_000_000)
    await asleep(till, record, 100 * GB)
    await till.clock.advance(DAY_S)
    await till.meter.tick()
    await till.charging.collect()

    assert await till.tab(record) == (WORST, 0)


async def test_a_wake_that_nobody_can_pay_for_is_refused_and_holds_nothing(till: Till) -> None:
    await till.terms(prepaid=True, credit=WORST)
    record = await till.run()
    await till.clock.advance(600)
    await asleep(till, record)
    with pytest.raises(InsufficientFunds):
        await till.charging.woken(record, LEASE_S)

    assert await till.tab(record) == (31_250 // 6, 0)


async def test_a_paused_sandbox_takes_no_place(till: Till) -> None:
    await till.terms(sandboxes_max=1)
    first = await till.run()
    await asleep(till, first)
    await till.run()

    with pytest.raises(QuotaExceeded):
        await till.charging.woken(first, LEASE_S)
