"""Takes money aside before a sandbox starts, charges what its host measured, and gives the rest back when it ends.

Prices, limits and entries are decided by billing and meter; this file reads the books, asks them, and writes both
the tab and its entries in one transaction. Everything can be done twice: a sample counts once, an entry posts once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from runtimed.billing import limits
from runtimed.billing import tab as tabs
from runtimed.billing.holds import Payer
from runtimed.billing.kept import keep, tab_of
from runtimed.billing.limits import DAY_S, Standing
from runtimed.billing.pricebook import PriceBook
from runtimed.billing.quote import worst_case
from runtimed.billing.rating import HOUR_MS, Terms, rate
from runtimed.billing.tab import Step, Tab
from runtimed.core import ledger
from runtimed.core.clock import Clock
from runtimed.core.errors import BudgetExceeded, PaymentRequired
from runtimed.core.ids import AccountId, KeyId, SandboxId
from runtimed.core.ledger import Entry
from runtimed.core.money import Micros, Spending
from runtimed.core.ports import Meter, SampleCounter
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.usage import MB, Counted, Sample, UsageRecord, UsageRun, Used
from runtimed.store.books import Books, OpenBooks

MS = 1000
STORAGE_HOLD_MS = 24 * HOUR_MS
"""What a sandbox stores is paid for a day at a time: enough to be cheap, little enough to hold."""
STORAGE_RENEW_MS = HOUR_MS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ChargingParts:
    books: Books
    meter: Meter
    counter: SampleCounter
    prices: PriceBook
    clock: Clock


class Charging:
    """The till of one service."""

    def __init__(self, parts: ChargingParts) -> None:
        self._books = parts.books
        self._meter = parts.meter
        self._counter = parts.counter
        self._prices = parts.prices
        self._clock = parts.clock
        self._collecting = asyncio.Lock()

    async def open(self, record: SandboxRecord, spending: Spending) -> None:
        """Hold what the first lease of a new sandbox can cost at most.

        Raises:
            BudgetExceeded, SpendingLimitReached, InsufficientFunds, TrialExhausted, QuotaExceeded: nothing is held.
        """
        now_s = self._clock.now_s()
        async with self._books.open(record.account_id) as books:
            standing = await self._standing(books, record.key_id)
            terms = Terms(
                rates=self._prices.at(now_s).rates,
                vcpu=record.shape.vcpu,
                memory_mib=record.shape.memory_mib,
                cpu_floor_millis=record.cpu_floor_millis or 0,
                max_total_micros=spending.max_total_micros,
            )
            lease_ms = record.lease_s * MS
            worst = worst_case(terms, lease_ms)
            limits.check_places(standing)
            limits.check_budget(worst, spending.max_cost_micros)
            _check_lifetime(terms.max_total_micros)
            capped = min(worst, terms.max_total_micros) if terms.max_total_micros is not None else worst
            funding = limits.choose_funding(spending.funding, standing, worst=capped, lease_ms=lease_ms)
            limits.check_floor(funding, terms.cpu_floor_millis)
            payer = Payer(
                account_id=record.account_id,
                key_id=record.key_id,
                sandbox_id=record.id,
                funding=funding,
                prepaid=standing.prepaid,
            )
            step = tabs.open_tab(payer, replace(terms, funding=funding), lease_ms=lease_ms, at_s=now_s)
            limits.check_hold(funding, standing, step.newly_held)
            await _write(books, step, running=True, new=True)

    def began(self, sandbox_id: SandboxId) -> None:
        """Its machine is ready: from now on its use counts. Idempotent."""
        self._meter.begin(sandbox_id)

    async def lease_changed(self, record: SandboxRecord, left_s: float) -> None:
        """Hold for a lease that lasts so much longer, or give back what a shorter one needs less.

        Raises:
            BudgetExceeded, SpendingLimitReached, InsufficientFunds, TrialExhausted: the lease stays as it is.
        """
        await self.collect()
        async with self._books.open(record.account_id) as books:
            if (kept := await books.tab(record.id)) is None:
                return
            tab = tab_of(kept)
            _check_lifetime(tab.may_still_cost)
            step = tabs.lease_changed(tab, left_ms=int(left_s * MS), at_s=self._clock.now_s())
            standing = await self._standing(books, tab.payer.key_id)
            limits.check_hold(tab.terms.funding, standing, step.newly_held)
            await _write(books, step, running=True)

    async def lifetime_cap(self, record: SandboxRecord, cap: Micros | None, *, field: str) -> None:
        """Set or lift the most that a sandbox may cost in all its life.

        Raises:
            InvalidRequest: the cap is below what is spent and held already; it names `field`.
            SpendingLimitReached, InsufficientFunds: what a lifted cap has to hold more is not there.
        """
        await self.collect()
        async with self._books.open(record.account_id) as books:
            if (kept := await books.tab(record.id)) is None:
                return
            tab = tab_of(kept)
            if cap is not None and tab.terms.funding == "credit":
                limits.check_new_limit(cap, in_use=tab.charged + tab.held, field=field)
            changed = replace(tab, terms=replace(tab.terms, max_total_micros=cap))
            step = tabs.lease_changed(changed, left_ms=tab.left_ms, at_s=self._clock.now_s())
            limits.check_hold(tab.terms.funding, await self._standing(books, tab.payer.key_id), step.newly_held)
            await _write(books, step, running=True)

    def pausing(self, sandbox_id: SandboxId) -> None:
        """Its vCPUs have stopped, or what ran of it is gone: its use ends here. Idempotent."""
        self._meter.end(sandbox_id, "paused")

    async def paused(self, record: SandboxRecord, owned_bytes: int) -> None:
        """It keeps so much on the disk and runs no more: give back what is held for running, hold for storage.

        What nobody can pay for is kept all the same and not charged: no limit is worth somebody's files.
        """
        await self.collect()
        async with self._books.open(record.account_id) as books:
            if (kept := await books.tab(record.id)) is None or kept.closed:
                return
            await self._store(books, tab_of(kept), owned_bytes // MB)
        if owned_bytes:
            self._meter.begin_paused(record.id, owned_bytes)

    async def renew_storage(self) -> None:
        """Hold for another day of storage where a day is nearly over. Idempotent."""
        for kept in await self._books.open_tabs():
            left_ms = tab_of(kept).storage_left_ms
            if left_ms is None or left_ms > STORAGE_RENEW_MS:
                continue
            async with self._books.open(kept.account_id) as books:
                if (now := await books.tab(kept.sandbox_id)) is not None and not now.running:
                    await self._store(books, tab_of(now), tab_of(now).stored_mb)

    async def woken(self, record: SandboxRecord, left_s: float) -> None:
        """It is to run again, for so long at most: hold for that before its machine starts.

        Raises:
            BudgetExceeded, SpendingLimitReached, InsufficientFunds, TrialExhausted, QuotaExceeded: nothing is held.
        """
        await self.collect()
        async with self._books.open(record.account_id) as books:
            if (kept := await books.tab(record.id)) is None or kept.closed:
                _log.warning("sandbox %s wakes without a tab", record.id)
                return
            tab, standing = tab_of(kept), await self._standing(books, record.key_id)
            if not kept.running:
                limits.check_places(standing)
            _check_lifetime(tab.may_still_cost)
            step = tabs.woken(tab, lease_ms=int(left_s * MS), at_s=self._clock.now_s())
            limits.check_hold(tab.terms.funding, standing, step.newly_held)
            await _write(books, step, running=True)

    async def _store(self, books: OpenBooks, tab: Tab, stored_mb: int) -> None:
        now_s = self._clock.now_s()
        step = tabs.paused(tab, stored_mb=stored_mb, keep_ms=STORAGE_HOLD_MS, at_s=now_s)
        try:
            standing = await self._standing(books, tab.payer.key_id)
            limits.check_hold(tab.terms.funding, standing, step.newly_held)
        except PaymentRequired as refused:
            _log.info("what sandbox %s stores is not charged: %s", tab.payer.sandbox_id, refused.message)
            step = tabs.paused(tab, stored_mb=stored_mb, keep_ms=0, at_s=now_s)
        await _write(books, step, running=False)

    def stopping(self, sandbox_id: SandboxId) -> None:
        """Its machine is about to be ended: nothing counts after this. Idempotent."""
        self._meter.end(sandbox_id, "stopped")

    async def settle(self, sandbox_id: SandboxId) -> None:
        """Its machine is gone: charge what was measured of it and give back what is held. Idempotent.

        Without `stopping` before it (the service was not there then), nothing after its newest sample is charged.
        """
        await self.collect()
        self._meter.forget(sandbox_id)
        kept = (await self._books.tabs([sandbox_id])).get(sandbox_id)
        if kept is None or kept.closed:
            return
        async with self._books.open(kept.account_id) as books:
            if (kept := await books.tab(sandbox_id)) is None:
                return
            last = self._counter.finish(sandbox_id, (await books.counts([sandbox_id])).get(sandbox_id))
            done = self._applied(tab_of(kept), last, running=kept.running)
            await _write_all(books, [done])
            await _write(books, tabs.close_tab(done.tab, at_s=self._clock.now_s()), running=False)

    async def collect(self) -> frozenset[SandboxId]:
        """Charge what hosts have measured. Answers the sandboxes whose lives' caps are spent. Idempotent."""
        spent: set[SandboxId] = set()
        async with self._collecting:
            batches = await self._meter.collect()
            samples = sorted((s for batch in batches for s in batch.samples), key=lambda s: (s.sandbox_id, s.seq))
            of_each = {key: list(group) for key, group in groupby(samples, key=lambda s: s.sandbox_id)}
            kept = await self._books.tabs(of_each)
            for account_id in sorted({tab.account_id for tab in kept.values()}):
                mine = {key: of_each[key] for key, tab in kept.items() if tab.account_id == account_id}
                spent |= await self._charge(account_id, mine)
            # Samples of a sandbox that no tab is open for are nobody's: its create failed.
            await self._meter.collected(batches)
        return frozenset(spent)

    async def _charge(self, account_id: AccountId, samples: Mapping[SandboxId, list[Sample]]) -> set[SandboxId]:
        """Everything of one account in one transaction, with as many questions for a hundred sandboxes as for one."""
        spent = set()
        async with self._books.open(account_id) as books:
            kept = await books.tabs(samples)
            counts = await books.counts(kept)
            done = []
            for sandbox_id, tab in kept.items():
                counted = self._counter.count(sandbox_id, counts.get(sandbox_id), samples[sandbox_id])
                done.append(self._applied(tab_of(tab), counted, running=tab.running))
            await _write_all(books, done)
        for one in done:
            if one.tab.capped and not one.tab.closed:
                spent.add(one.tab.payer.sandbox_id)
        return spent

    def _applied(self, tab: Tab, counted: Counted, *, running: bool) -> _Applied:
        """A tab charged for what was counted."""
        entries: list[Entry] = []
        runs: list[UsageRun] = []
        for credited, group in groupby(counted.records, key=lambda r: r.credited):
            records = list(group)
            step = tabs.apply(tab, records, at_s=self._clock.now_s())
            entries += step.entries
            runs.append(_run(tab, step, records, credited=credited))
            tab = step.tab
        return _Applied(tab=tab, running=running, entries=entries, runs=runs, document=counted.document)

    async def _standing(self, books: OpenBooks, key_id: KeyId) -> Standing:
        return await standing_of(books, key_id, prices=self._prices, now_s=self._clock.now_s())


async def standing_of(books: OpenBooks, key_id: KeyId, *, prices: PriceBook, now_s: float) -> Standing:
    """What an account and a key have now. Grants the trial's hours to an account that never had them."""
    found = await books.standing(key_id, since_s=now_s - DAY_S)
    trial_ms = found.trial_ms
    if trial_ms is None and (given := prices.at(now_s).trial_hours * HOUR_MS):
        await books.post([_trial_grant(books.account_id, given, now_s)])
        trial_ms = given
    return Standing(
        prepaid=found.terms.prepaid,
        available=found.credit,
        trial_left_ms=trial_ms or 0,
        day_limit=found.day_limit,
        day_settled=found.day_settled,
        day_held=found.day_held,
        sandboxes=found.running,
        sandboxes_max=found.terms.sandboxes_max,
    )


def _trial_grant(account_id: AccountId, trial_ms: int, now_s: float) -> Entry:
    return Entry(
        key=f"{account_id}/trial",
        at_s=now_s,
        source=ledger.TRIAL_GRANTED,
        target=ledger.trial(account_id),
        amount=trial_ms,
        reason="grant",
        account_id=account_id,
    )


@dataclass(frozen=True, kw_only=True)
class _Applied:
    """What some samples of one sandbox came to, not written yet."""

    tab: Tab
    running: bool
    entries: list[Entry]
    runs: list[UsageRun]
    document: Mapping[str, object]


async def _write_all(books: OpenBooks, done: Iterable[_Applied]) -> None:
    done = list(done)
    await books.post([entry for one in done for entry in one.entries])
    await books.save([keep(one.tab, running=one.running) for one in done])
    await books.add_usage([run for one in done for run in one.runs])
    await books.save_counts({one.tab.payer.sandbox_id: one.document for one in done})


async def _write(books: OpenBooks, step: Step, *, running: bool, new: bool = False) -> None:
    await books.post(step.entries)
    await books.save([keep(step.tab, running=running)], new=new)


def _run(tab: Tab, step: Step, records: list[UsageRecord], *, credited: bool) -> UsageRun:
    used = _sum(record.used for record in records)
    micros = 0
    if tab.terms.funding == "credit":
        before, after = tab, step.tab
        gross = rate(after.credited, after.terms).total - rate(before.credited, before.terms).total
        micros = gross if credited else after.charged - before.charged
    return UsageRun(
        sandbox_id=tab.payer.sandbox_id,
        first_seq=records[0].seq,
        last_seq=records[-1].seq,
        account_id=tab.payer.account_id,
        key_id=tab.payer.key_id,
        at_s=records[-1].at_ms / MS,
        used=used,
        mib_ms=used.running_ms * tab.terms.memory_mib,
        credited=credited,
        micros=micros,
        sample_hashes=tuple(record.sample_hash for record in records),
    )


def _sum(parts: Iterable[Used]) -> Used:
    whole = Used()
    for part in parts:
        whole = whole + part
    return whole


def _check_lifetime(left: int | None) -> None:
    if left is not None and left <= 0:
        raise BudgetExceeded(
            "nothing is left of what this sandbox may cost in all its life", hint="raise maxTotalCostMicros"
        )
