"""One sandbox's tab: what it used, what was charged for it and what is held, from its create to its end.

    open_tab --hold--> running --apply(record)--> charge        close_tab --release--> closed
                       |  ^ lease_changed: hold more, or less
               paused  |  | woken
                       v  |
                       paused  (a hold for storage instead)

Every step takes a tab and answers the next one with the ledger entries that belong to it; whoever keeps both writes
them in one transaction. The steps can be repeated: a record that was applied, or a tab that is closed, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from runtimed.billing import holds
from runtimed.billing.holds import Payer, Post
from runtimed.billing.quote import busiest
from runtimed.billing.rating import Terms, rate
from runtimed.core.ledger import Entry
from runtimed.core.usage import UsageRecord, Used


@dataclass(frozen=True, kw_only=True)
class Tab:
    """Amounts are in the unit of the payer's purse: microdollars, or milliseconds of the trial."""

    payer: Payer
    terms: Terms
    used: Used = field(default_factory=Used)
    """What is charged. Never more running time than `paid_ms`, nor more storage than `paid_mb_ms`."""
    credited: Used = field(default_factory=Used)
    """What was used while the host could not be reached."""
    paid_ms: int
    """Running time, in all its life, that leases have taken holds for."""
    paid_mb_ms: int = 0
    """The same for paused storage."""
    stored_mb: int = 0
    """Decimal megabytes that it keeps on the host's disk while it does not run."""
    last_seq: int = 0
    """Number of the newest record that was applied."""
    step: int = 0
    """Counts changes of the hold, to name their entries."""
    held: int = 0
    charged: int = 0
    closed: bool = False

    @property
    def left_ms(self) -> int:
        """Running time that is held for and not used."""
        return self.paid_ms - self.used.running_ms

    @property
    def storage_left_ms(self) -> int | None:
        """How long what it stores is held for; None where it stores nothing."""
        return (self.paid_mb_ms - self.used.paused_mb_ms) // self.stored_mb if self.stored_mb else None

    @property
    def price(self) -> int:
        """What everything used so far costs, before a cap."""
        return _price(self.used, self.terms)

    @property
    def may_still_cost(self) -> int | None:
        """What the cap on its life leaves; None where there is none."""
        cap = self.terms.max_total_micros
        return None if cap is None or self.terms.funding == "trial" else cap - self.charged

    @property
    def capped(self) -> bool:
        """Whether its life must end because nothing more may be charged."""
        return self.may_still_cost is not None and self.held == 0 and self.may_still_cost <= 0


@dataclass(frozen=True)
class Step:
    """A tab after something happened, and the entries that belong to that."""

    tab: Tab
    entries: list[Entry]

    @property
    def newly_held(self) -> int:
        """What this takes from the purse: the figure that limits are checked against."""
        return sum(e.amount for e in self.entries if e.reason == "hold")


def open_tab(payer: Payer, terms: Terms, *, lease_ms: int, at_s: float) -> Step:
    """The tab of a new sandbox, with a hold for the worst case of its first lease."""
    return _hold(Tab(payer=payer, terms=terms, paid_ms=lease_ms), at_s=at_s)


def apply(tab: Tab, records: Iterable[UsageRecord], *, at_s: float) -> Step:
    """Charge what these records add. Records that were applied before change nothing.

    What lies beyond the lease, or comes after the end, is not charged: an interval ends with its lease, whatever died.
    """
    if tab.closed:
        return Step(tab, [])
    before = tab
    for record in sorted(records, key=lambda r: r.seq):
        if record.seq <= tab.last_seq:
            continue
        if record.credited:
            tab = replace(tab, last_seq=record.seq, credited=tab.credited + record.used)
        else:
            tab = replace(tab, last_seq=record.seq, used=tab.used + _within(tab, record.used))
    post = Post(name=str(tab.last_seq), at_s=at_s)
    # Only what a cap on its whole life cut off the hold can make the price larger than the hold.
    amount = min(tab.price - _price(before.used, before.terms), tab.held)
    given = rate(tab.credited, tab.terms).total - rate(before.credited, before.terms).total
    tab = replace(tab, charged=tab.charged + amount, held=tab.held - amount)
    return Step(tab, [*holds.charged(tab.payer, post, amount), *holds.written_off(tab.payer, post, given)])


def lease_changed(tab: Tab, *, left_ms: int, at_s: float) -> Step:
    """A lease that now lasts `left_ms` more of running: extended, renewed or shortened."""
    if tab.closed:
        return Step(tab, [])
    return _hold(replace(tab, paid_ms=tab.used.running_ms + max(0, left_ms)), at_s=at_s)


def paused(tab: Tab, *, stored_mb: int, keep_ms: int, at_s: float) -> Step:
    """It runs no more: what was held for running comes back, and what it stores is held for, for so long.

    Called again while it is paused, this renews the hold for storage.
    """
    if tab.closed:
        return Step(tab, [])
    stored = tab.used.paused_mb_ms + max(0, stored_mb * keep_ms)
    return _hold(replace(tab, paid_ms=tab.used.running_ms, paid_mb_ms=stored, stored_mb=stored_mb), at_s=at_s)


def woken(tab: Tab, *, lease_ms: int, at_s: float) -> Step:
    """It runs again under a new lease."""
    if tab.closed:
        return Step(tab, [])
    paid_ms = tab.used.running_ms + max(0, lease_ms)
    running = replace(tab, paid_ms=paid_ms, paid_mb_ms=tab.used.paused_mb_ms, stored_mb=0)
    return _hold(running, at_s=at_s)


def close_tab(tab: Tab, *, at_s: float) -> Step:
    """It ended: everything that is held comes back. Idempotent."""
    if tab.closed:
        return Step(tab, [])
    step = tab.step + 1
    entries = holds.hold_changed(tab.payer, Post(name=str(step), at_s=at_s), before=tab.held, after=0)
    return Step(replace(tab, held=0, step=step, closed=True), entries)


def _hold(tab: Tab, *, at_s: float) -> Step:
    """Hold exactly what the rest of the lease can cost at most."""
    rest = busiest(tab.terms, tab.left_ms) + Used(paused_mb_ms=tab.paid_mb_ms - tab.used.paused_mb_ms)
    wanted = _price(tab.used + rest, tab.terms) - tab.price
    if tab.may_still_cost is not None:
        wanted = max(0, min(wanted, tab.may_still_cost))
    step = tab.step + 1
    entries = holds.hold_changed(tab.payer, Post(name=str(step), at_s=at_s), before=tab.held, after=wanted)
    return Step(replace(tab, held=wanted, step=step), entries)


def _price(used: Used, terms: Terms) -> int:
    return used.running_ms if terms.funding == "trial" else rate(used, terms).total


def _within(tab: Tab, used: Used) -> Used:
    """The part that leases have paid for; CPU in proportion to the time that counts."""
    running = min(used.running_ms, tab.left_ms)
    cpu = used.cpu_us if running == used.running_ms else used.cpu_us * running // used.running_ms
    stored = min(used.paused_mb_ms, tab.paid_mb_ms - tab.used.paused_mb_ms)
    return replace(used, running_ms=running, cpu_us=cpu, paused_mb_ms=stored)
