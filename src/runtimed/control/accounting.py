"""What callers may read of money and use: their limits, their usage, a sandbox's receipt. Changes nothing of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runtimed.billing.kept import tab_of
from runtimed.billing.limits import DAY_S
from runtimed.billing.pricebook import PriceBook
from runtimed.billing.rating import HOUR_MS
from runtimed.billing.receipt import receipt
from runtimed.control.charging import Charging, standing_of
from runtimed.core import ledger
from runtimed.core.accounting import LimitsShown, Receipt, SandboxMoney, UsagePage, UsageShown
from runtimed.core.clock import Clock
from runtimed.core.errors import NotFound
from runtimed.core.ids import SandboxId
from runtimed.core.sandbox import Caller, SandboxRecord
from runtimed.store.books import Books, UsageQuery
from runtimed.store.usage_reports import UsageReports, read_cursor

WEEK_S = 7 * DAY_S
FINAL_AFTER_S = 120
"""Use is counted at most this long after it happened, unless its host cannot be reached."""


class Accounting:
    """The books as their owners see them."""

    def __init__(
        self, charging: Charging, books: Books, reports: UsageReports, *, prices: PriceBook, clock: Clock
    ) -> None:
        self._charging = charging
        self._books = books
        self._reports = reports
        self._prices = prices
        self._clock = clock

    async def limits(self, caller: Caller) -> LimitsShown:
        """What bounds this key and its account now."""
        now_s, account_id = self._clock.now_s(), caller.account_id
        async with self._books.open(account_id) as books:
            standing = await standing_of(books, caller.key_id, prices=self._prices, now_s=now_s)
            held = await books.held_aside()
            owed = -await books.balance(ledger.owed(account_id)) - held.of_owed
        return LimitsShown(
            day_limit=standing.day_limit,
            day_settled=standing.day_settled,
            day_held=standing.day_held,
            trial_left_ms=standing.trial_left_ms,
            trial_ms=self._prices.at(now_s).trial_hours * HOUR_MS,
            trial_held_ms=held.of_trial_ms,
            prepaid=standing.prepaid,
            available=standing.available,
            owed=owed,
            held=held.of_credit + held.of_owed,
            spent=await self._reports.spent(account_id, since_s=0.0),
            week_spent=await self._reports.spent(account_id, since_s=now_s - WEEK_S),
            sandboxes=standing.sandboxes,
            sandboxes_max=standing.sandboxes_max,
        )

    async def usage(self, caller: Caller, *, since_s: float, until_s: float) -> UsageShown:
        """What was used and spent in a time, as it is counted up to now."""
        await self._charging.collect()
        return await self._reports.shown(self._query(caller, since_s, until_s))

    async def export(
        self, caller: Caller, *, since_s: float, until_s: float, limit: int, cursor: str | None
    ) -> UsagePage:
        """Everything that was counted in a time, page by page. Raises InvalidRequest for a strange cursor."""
        await self._charging.collect()
        wanted = UsageQuery(**{**vars(self._query(caller, since_s, until_s)), "after": read_cursor(cursor)})
        final_s = min(until_s, self._clock.now_s() - FINAL_AFTER_S)
        return await self._reports.page(wanted, limit=limit, final_through_s=final_s)

    async def receipt(self, record: SandboxRecord) -> Receipt:
        """Raises NotFound where nothing was ever charged for: a sandbox from before there was money."""
        if record.can_run:
            await self._charging.collect()
        kept = (await self._books.tabs([record.id])).get(record.id)
        if kept is None:
            raise NotFound(f"sandbox {record.id} has no receipt")
        return receipt(tab_of(kept))

    async def money(self, sandbox_ids: Iterable[SandboxId]) -> Mapping[SandboxId, SandboxMoney]:
        """Charged and held, of each sandbox that has a tab."""
        kept = await self._books.tabs(sandbox_ids)
        return {
            key: SandboxMoney(trial=True)
            if tab.unit == "trial_ms"
            else SandboxMoney(charged_micros=tab.charged, held_micros=tab.held)
            for key, tab in kept.items()
        }

    def _query(self, caller: Caller, since_s: float, until_s: float) -> UsageQuery:
        key_id = None if caller.account_wide else caller.key_id
        return UsageQuery(account_id=caller.account_id, key_id=key_id, since_s=since_s, until_s=until_s)
