"""Use is priced exactly, rounded down once a line, and splitting an interval never changes the sum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtimed.billing.quote import worst_case
from runtimed.billing.rating import rate
from runtimed.core.usage import MB, Used

from .ladder import HOUR_MS, HOUR_US, terms

uses = st.builds(
    Used,
    cpu_us=st.integers(0, 10**11),
    running_ms=st.integers(0, 10**8),
    paused_mb_ms=st.integers(0, 10**13),
)


def test_an_hour_of_waiting_at_two_vcpu_and_four_gib_costs_what_is_promised() -> None:
    assert rate(Used(running_ms=HOUR_MS), terms()).total == 31_250


def test_a_sleeping_hour_with_twenty_cpu_seconds_costs_both_parts() -> None:
    bill = rate(Used(running_ms=HOUR_MS, cpu_us=20_000_000), terms())

    assert {line.kind: line.micros for line in bill.lines} == {"cpu": 97, "memory": 31_250}  # 97.2 rounded down


def test_fifty_thousand_calls_cost_the_published_month() -> None:
    seconds = 50_000 * 120
    month = Used(running_ms=seconds * 1000, cpu_us=50_000 * 20 * 1_000_000)

    assert rate(month, terms()).total == 56_944_444  # two lines, each rounded down: $56.94


def test_a_gigabyte_kept_for_thirty_days_costs_the_operators_rate() -> None:
    kept = Used(paused_mb_ms=1000 * 30 * 24 * HOUR_MS)

    assert rate(kept, terms()).total == 100_000
    assert MB == 10**6


def test_a_floor_is_paid_only_where_it_was_asked_for() -> None:
    idle = Used(running_ms=HOUR_MS)

    assert rate(idle, terms(cpu_floor_millis=500)).total == 31_250 + 17_500 // 2
    assert rate(idle, terms()).total == 31_250


def test_use_above_the_floor_is_paid_as_it_was_measured() -> None:
    busy = Used(running_ms=HOUR_MS, cpu_us=HOUR_US)

    assert rate(busy, terms(cpu_floor_millis=500)).total == 31_250 + 17_500


def test_the_process_can_not_cost_more_cpu_than_the_machine_has() -> None:
    beyond = Used(running_ms=HOUR_MS, cpu_us=3 * HOUR_US)

    assert rate(beyond, terms()).total == worst_case(terms(), HOUR_MS)


def test_the_trial_is_at_zero() -> None:
    bill = rate(Used(running_ms=HOUR_MS, cpu_us=HOUR_US, paused_mb_ms=10**12), terms(funding="trial"))

    assert bill.total == 0
    assert [line.kind for line in bill.lines] == ["cpu", "memory", "paused_storage"]


@given(st.lists(uses, max_size=20), st.integers(0, 2000))
def test_splitting_an_interval_never_changes_the_sum(parts: list[Used], floor: int) -> None:
    agreed = terms(cpu_floor_millis=floor)
    so_far, charged = Used(), 0
    for part in parts:
        charged += rate(so_far + part, agreed).total - rate(so_far, agreed).total
        so_far = so_far + part

    assert charged == rate(so_far, agreed).total


@given(uses, uses)
def test_pricing_two_halves_apart_differs_by_less_than_a_microdollar_a_line(one: Used, other: Used) -> None:
    """Each of the three lines is rounded once more; each loses less than one."""
    wide = terms(vcpu=10**9)  # no cap on CPU, which looks at both halves together
    apart = rate(one, wide).total + rate(other, wide).total
    joined = {line.kind: line.micros for line in rate(one + other, wide).lines}
    each = {line.kind: line.micros for line in rate(one, wide).lines}
    rest = {line.kind: line.micros for line in rate(other, wide).lines}

    if one.running_ms and other.running_ms:
        assert all(0 <= joined[k] - each.get(k, 0) - rest.get(k, 0) <= 1 for k in joined)
        assert 0 <= sum(joined.values()) - apart <= 3


@given(uses, uses, st.integers(0, 2000))
def test_more_use_never_costs_less(before: Used, more: Used, floor: int) -> None:
    agreed = terms(cpu_floor_millis=floor)

    assert rate(before + more, agreed).total >= rate(before, agreed).total


@given(uses, st.integers(0, 10**8), st.integers(0, 10**12))
def test_nothing_that_can_be_measured_costs_more_than_the_quote(before: Used, lease_ms: int, cpu_us: int) -> None:
    agreed = terms()
    before = Used(running_ms=before.running_ms, cpu_us=min(before.cpu_us, 2000 * before.running_ms))
    used = Used(running_ms=lease_ms, cpu_us=min(cpu_us, 2000 * lease_ms))

    cost = rate(before + used, agreed).total - rate(before, agreed).total
    assert cost <= worst_case(agreed, lease_ms, so_far=before)
