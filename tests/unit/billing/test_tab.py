"""For any sequence of facts: entries balance, nothing is overdrawn, receipts sum to entries, holds come back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimed.billing import limits
from runtimed.billing.holds import Payer
from runtimed.billing.ledger import Ledger
from runtimed.billing.limits import Standing
from runtimed.billing.quote import worst_case
from runtimed.billing.rating import Terms, rate
from runtimed.billing.receipt import paid_by_entries, receipt
from runtimed.billing.tab import Step, Tab, apply, close_tab, lease_changed, open_tab, paused, woken
from runtimed.core import ledger
from runtimed.core.errors import CallerError
from runtimed.core.ids import SandboxId
from runtimed.core.ledger import Entry
from runtimed.core.money import Micros
from runtimed.core.usage import UsageRecord, Used

from .ladder import ACCOUNT, HOUR_MS, RATES, SBX, payer, record, terms

LEASE_MS = HOUR_MS // 2


@dataclass
class World:
    """An account with credit and trial hours, its sandboxes, and a ledger. Refusals change nothing."""

    credit: int
    trial_ms: int
    prepaid: bool
    book: Ledger = field(default_factory=Ledger)
    tabs: dict[str, Tab] = field(default_factory=dict)
    records: list[UsageRecord] = field(default_factory=list)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        for amount, source, target in (
            (self.credit, ledger.GRANTED, ledger.credit(ACCOUNT)),
            (self.trial_ms, ledger.TRIAL_GRANTED, ledger.trial(ACCOUNT)),
        ):
            if amount:
                self.book.post(
                    [
                        Entry(
                            key=str(target),
                            at_s=0.0,
                            source=source,
                            target=target,
                            amount=amount,
                            reason="grant",
                            account_id=ACCOUNT,
                        )
                    ]
                )

    def standing(self) -> Standing:
        return Standing(
            prepaid=self.prepaid,
            available=self.book.balance(ledger.credit(ACCOUNT)),
            trial_left_ms=self.book.balance(ledger.trial(ACCOUNT)),
        )

    def take(self, name: str, step: Step) -> None:
        """What the wiring does: check the limits, then keep the tab and its entries together."""
        try:
            limits.check_hold(step.tab.terms.funding, self.standing(), step.newly_held)
        except CallerError:
            return
        self.book.post(step.entries)
        self.book.post(step.entries)  # a crash after the commit makes the same post come again
        self.tabs[name] = step.tab


@dataclass(frozen=True)
class Fact:
    what: str
    sandbox: str
    ms: int
    cpu_us: int
    seq_back: int


facts = st.builds(
    Fact,
    st.sampled_from(["create", "sample", "sample", "lost", "pause", "wake", "extend", "stop", "crash", "repeat"]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 2 * LEASE_MS),
    st.integers(0, 3 * LEASE_MS * 1000),
    st.integers(0, 3),
)
agreed = st.builds(
    Terms,
    rates=st.just(RATES),
    vcpu=st.integers(1, 4),
    memory_mib=st.sampled_from([128, 1000, 4096]),
    cpu_floor_millis=st.sampled_from([0, 250, 1000]),
    funding=st.sampled_from(["credit", "trial"]),
    max_total_micros=st.sampled_from([None, Micros(500), Micros(20_000)]),
)


def happen(world: World, fact: Fact, terms: Terms) -> None:
    world.now_s += 1
    tab = world.tabs.get(fact.sandbox)
    if fact.what == "create" and tab is None:
        paying = payer(SandboxId(fact.sandbox), funding=terms.funding, prepaid=world.prepaid)
        world.take(fact.sandbox, open_tab(paying, terms, lease_ms=LEASE_MS, at_s=world.now_s))
    if tab is None:
        return
    if fact.what in ("sample", "lost"):
        used = Used(cpu_us=fact.cpu_us, running_ms=fact.ms, paused_mb_ms=fact.ms * 40)
        new = record(
            len(world.records) + 1 - fact.seq_back,
            used,
            sandbox=tab.payer.sandbox_id,
            credited=fact.what == "lost",
        )
        world.records.append(new)
        world.take(fact.sandbox, apply(tab, [new], at_s=world.now_s))
    elif fact.what == "repeat":
        mine = [r for r in world.records if r.sandbox_id == tab.payer.sandbox_id and r.seq <= tab.last_seq]
        step = apply(tab, mine, at_s=world.now_s)
        assert step == Step(tab, [])
    elif fact.what == "pause":
        world.take(fact.sandbox, paused(tab, stored_mb=40, keep_ms=fact.ms, at_s=world.now_s))
    elif fact.what == "wake":
        world.take(fact.sandbox, woken(tab, lease_ms=LEASE_MS, at_s=world.now_s))
    elif fact.what == "extend":
        world.take(fact.sandbox, lease_changed(tab, left_ms=fact.ms, at_s=world.now_s))
    elif fact.what in ("stop", "crash"):
        world.take(fact.sandbox, close_tab(tab, at_s=world.now_s))


def check(world: World) -> None:
    balances = world.book.balances()
    assert sum(b for a, b in balances.items() if ledger.unit_of(a) == "micros") == 0
    assert sum(b for a, b in balances.items() if ledger.unit_of(a) == "trial_ms") == 0
    assert all(b >= 0 or ledger.may_be_negative(a) for a, b in balances.items())
    for tab in world.tabs.values():
        mine = [e for e in world.book.entries() if e.sandbox_id == tab.payer.sandbox_id]
        assert world.book.balance(tab.payer.held) == tab.held
        paper = receipt(tab)
        assert paper.total_micros == sum(line.micros for line in paper.lines) == paid_by_entries(mine)
        cap = tab.terms.max_total_micros
        if cap is not None and tab.terms.funding == "credit":
            assert tab.charged + tab.held <= cap


@settings(max_examples=200, deadline=None)
@given(
    st.lists(facts, max_size=40),
    st.lists(agreed, min_size=1, max_size=3),
    st.integers(0, 100_000),
    st.integers(0, 3 * LEASE_MS),
    st.booleans(),
)
def test_any_sequence_of_facts_keeps_the_books(
    told: list[Fact], wanted: list[Terms], credit: int, trial_ms: int, prepaid: bool
) -> None:
    world = World(credit, trial_ms, prepaid)
    for number, fact in enumerate(told):
        happen(world, fact, wanted[number % len(wanted)])
        check(world)
    for name in list(world.tabs):
        happen(world, Fact("stop", name, 0, 0, 0), wanted[0])
        happen(world, Fact("stop", name, 0, 0, 0), wanted[0])
    check(world)

    assert all(world.book.balance(tab.payer.held) == 0 for tab in world.tabs.values())
    spent = sum(tab.charged for tab in world.tabs.values() if tab.terms.funding == "credit")
    if prepaid:
        assert world.book.balance(ledger.credit(ACCOUNT)) == credit - spent
    else:
        assert world.book.balance(ledger.owed(ACCOUNT)) == -spent


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 10**8)), max_size=12), st.randoms())
def test_duplicates_of_records_change_nothing_in_any_order(parts: list[tuple[int, int]], chance: random.Random) -> None:
    opened = open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0).tab
    records = [record(n, Used(running_ms=ms, cpu_us=cpu)) for n, (ms, cpu) in enumerate(parts, start=1)]
    once = apply(opened, records, at_s=1).tab
    mixed = records * 3
    chance.shuffle(mixed)

    assert apply(opened, mixed, at_s=1).tab == once
    assert apply(once, mixed, at_s=2) == Step(once, [])


def test_a_create_holds_the_worst_case_of_its_lease_and_a_stop_gives_the_rest_back() -> None:
    opened = open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0)
    ran = apply(opened.tab, [record(1, Used(running_ms=LEASE_MS // 2, cpu_us=20_000_000))], at_s=1)
    ended = close_tab(ran.tab, at_s=2)

    assert opened.newly_held == opened.tab.held == worst_case(terms(), LEASE_MS)
    assert [(e.reason, e.amount) for e in ran.entries] == [("charge", 7_812 + 97)]
    assert [e.reason for e in ended.entries] == ["release"]
    assert ended.tab.held == 0
    assert ended.tab.charged + ended.entries[0].amount == opened.newly_held


def test_use_after_the_lease_is_not_charged() -> None:
    opened = open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0).tab
    late = apply(opened, [record(1, Used(running_ms=3 * LEASE_MS, cpu_us=30_000_000))], at_s=1).tab

    assert late.used == Used(running_ms=LEASE_MS, cpu_us=10_000_000)
    assert late.charged == rate(late.used, terms()).total


def test_what_comes_after_the_end_is_not_charged() -> None:
    closed = close_tab(open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0).tab, at_s=1).tab

    assert apply(closed, [record(1, Used(running_ms=1000))], at_s=2) == Step(closed, [])
    assert woken(closed, lease_ms=LEASE_MS, at_s=2) == Step(closed, [])


def test_a_pause_frees_what_was_held_for_running_and_holds_for_storage() -> None:
    opened = open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0).tab
    day_of_40_gb = 40_000 * 24 * HOUR_MS
    day = {"stored_mb": 40_000, "keep_ms": 24 * HOUR_MS}
    asleep = paused(opened, **day, at_s=1)
    kept = apply(asleep.tab, [record(1, Used(paused_mb_ms=day_of_40_gb))], at_s=2)
    again = paused(kept.tab, **day, at_s=3)
    awake = woken(again.tab, lease_ms=LEASE_MS, at_s=4)

    assert asleep.tab.held == 40 * 100_000 // 30
    assert (kept.tab.held, kept.tab.charged) == (0, 40 * 100_000 // 30)
    assert again.tab.held in (40 * 100_000 // 30, 40 * 100_000 // 30 + 1)
    assert awake.tab.held >= worst_case(terms(), LEASE_MS)


def test_what_was_used_while_the_host_was_unreachable_is_shown_and_given_back() -> None:
    opened = open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0).tab
    lost = apply(opened, [record(1, Used(running_ms=60_000), credited=True)], at_s=1)
    paper = receipt(lost.tab)

    assert [(e.reason, e.source, e.amount) for e in lost.entries] == [("credit", ledger.WRITTEN_OFF, 520)]
    assert [line.micros for line in paper.lines] == [520, -520]
    assert (lost.tab.charged, lost.tab.held) == (0, opened.held)


def test_outbound_traffic_is_a_line_at_zero() -> None:
    opened = open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0).tab
    sent = apply(opened, [record(1, Used(running_ms=1000, outbound_bytes=1_500_000_000))], at_s=1).tab
    paper = receipt(sent)

    assert (paper.lines[-1].what, paper.lines[-1].quantity, paper.lines[-1].unit, paper.lines[-1].micros) == (
        "outbound traffic: not charged",
        "1.5",
        "GB",
        0,
    )
    assert (paper.outbound_bytes, paper.total_micros) == (1_500_000_000, sent.charged)


def test_a_cap_on_its_life_is_never_passed_by_a_microdollar() -> None:
    capped = open_tab(payer(), terms(max_total_micros=Micros(5_000)), lease_ms=LEASE_MS, at_s=0).tab
    used = apply(capped, [record(1, Used(running_ms=LEASE_MS, cpu_us=10**9))], at_s=1).tab

    assert (capped.held, used.charged, used.held, used.capped) == (5_000, 5_000, 0, True)
    assert receipt(used).total_micros == 5_000
    assert "not charged" in receipt(used).lines[-1].what


def test_the_trial_holds_and_uses_hours_and_costs_nothing() -> None:
    paying = payer(funding="trial")
    opened = open_tab(paying, terms(funding="trial"), lease_ms=LEASE_MS, at_s=0)
    ran = apply(opened.tab, [record(1, Used(running_ms=60_000, cpu_us=10**7))], at_s=1)
    ended = close_tab(ran.tab, at_s=2)

    assert [(e.source, e.target, e.amount) for e in [*opened.entries, *ran.entries, *ended.entries]] == [
        (ledger.trial(ACCOUNT), ledger.trial_held(SBX), LEASE_MS),
        (ledger.trial_held(SBX), ledger.TRIAL_USED, 60_000),
        (ledger.trial_held(SBX), ledger.trial(ACCOUNT), LEASE_MS - 60_000),
    ]
    assert receipt(ended.tab).total_micros == 0
    assert receipt(ended.tab).trial_ms == 60_000


def test_a_receipt_shows_the_share_of_time_it_waited() -> None:
    opened = open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0).tab
    ran = apply(opened, [record(1, Used(running_ms=100_000, cpu_us=22_000_000))], at_s=1).tab

    assert receipt(ran).waited_permille == 780
    assert receipt(opened).waited_permille is None


def test_a_shorter_lease_gives_back_and_a_longer_one_holds_more() -> None:
    opened = open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0).tab
    shorter = lease_changed(opened, left_ms=LEASE_MS // 2, at_s=1)
    longer = lease_changed(shorter.tab, left_ms=LEASE_MS, at_s=2)

    assert [e.reason for e in [*shorter.entries, *longer.entries]] == ["release", "hold"]
    assert longer.tab.held == opened.held


def test_prices_agreed_at_create_stay_when_the_book_changes() -> None:
    dear = replace(RATES, cpu_vcpu_hour=RATES.cpu_vcpu_hour * 2)
    opened = open_tab(payer(), terms(), lease_ms=LEASE_MS, at_s=0).tab
    other = open_tab(Payer(**{**vars(payer()), "sandbox_id": "b"}), terms(rates=dear), lease_ms=LEASE_MS, at_s=0).tab

    assert other.held > opened.held
    assert lease_changed(opened, left_ms=LEASE_MS, at_s=1).entries == []
