"""Limits are decided before anything starts, to the microdollar, and each refusal has its own code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.billing import limits
from runtimed.billing.limits import DAY_S, Standing, settled_in_a_day
from runtimed.billing.quote import worst_case
from runtimed.core.errors import (
    BudgetExceeded,
    CallerError,
    InsufficientFunds,
    InvalidRequest,
    QuotaExceeded,
    SpendingLimitReached,
    TrialExhausted,
)
from runtimed.core.money import Micros

from .ladder import HOUR_MS, terms


def standing(**changed: Any) -> Standing:
    return Standing(**{"prepaid": True, "available": 1_000_000, "trial_left_ms": 50 * HOUR_MS, **changed})


def test_seven_leases_fit_into_a_limit_for_seven_and_not_one_more() -> None:
    worst = worst_case(terms(), HOUR_MS)
    day, held, made, refused = Micros(7 * worst + worst - 1), 0, 0, 0
    for _ in range(100):
        try:
            limits.check_hold("credit", standing(available=10**9, day_limit=day, day_held=held), worst)
        except SpendingLimitReached:
            refused += 1
        else:
            made, held = made + 1, held + worst

    assert (made, refused) == (7, 93)
    assert held <= day


@given(st.lists(st.tuples(st.integers(0, 3 * DAY_S), st.integers(1, 400)), max_size=30))
def test_no_window_of_24_hours_ever_holds_more_than_the_limit(asked: list[tuple[int, int]]) -> None:
    """Every hold is charged whole, at once: the worst for a limit."""
    charges: list[tuple[float, int]] = []
    for at_s, micros in sorted(asked):
        settled = settled_in_a_day(charges, now_s=at_s)
        try:
            limits.check_day(standing(day_limit=Micros(1000), day_settled=settled), micros)
        except SpendingLimitReached:
            continue
        charges.append((at_s, micros))

    for start, _ in charges:
        assert sum(micros for at_s, micros in charges if start <= at_s < start + DAY_S) <= 1000


@pytest.mark.parametrize(
    ("asked", "has", "pays"),
    [
        ("trial", {}, "trial"),
        ("paid", {}, "credit"),
        (None, {}, "credit"),
        (None, {"available": 0}, "trial"),
        (None, {"available": 0, "prepaid": False, "trial_left_ms": 0}, "credit"),
    ],
)
def test_what_pays_is_what_was_asked_for_or_else_what_can(asked: Any, has: dict[str, Any], pays: str) -> None:
    assert limits.choose_funding(asked, standing(**has), worst=100, lease_ms=HOUR_MS) == pays


@pytest.mark.parametrize(
    ("asked", "has", "error"),
    [
        ("trial", {"trial_left_ms": HOUR_MS - 1}, TrialExhausted),  # with credit: it never falls back to it
        ("trial", {"trial_left_ms": 0, "prepaid": False}, TrialExhausted),
        ("paid", {"available": 99}, InsufficientFunds),  # with trial hours: they are not taken unasked
        (None, {"available": 99, "trial_left_ms": HOUR_MS - 1}, InsufficientFunds),
    ],
)
def test_what_can_not_be_paid_is_refused(asked: Any, has: dict[str, Any], error: type[CallerError]) -> None:
    with pytest.raises(error):
        limits.choose_funding(asked, standing(**has), worst=100, lease_ms=HOUR_MS)


def test_a_first_lease_above_its_budget_is_refused_before_anything_starts() -> None:
    limits.check_budget(100, Micros(100))
    with pytest.raises(BudgetExceeded) as refused:
        limits.check_budget(101, Micros(100))

    assert (refused.value.status, refused.value.code) == (409, "budget_exceeded")
    assert refused.value.details == {"maxCostMicros": 100, "worstCaseMicros": 101}


def test_the_trial_is_not_counted_against_a_daily_limit() -> None:
    limits.check_hold("trial", standing(day_limit=Micros(0)), HOUR_MS)


def test_giving_back_is_never_refused() -> None:
    limits.check_hold("credit", standing(available=0, day_limit=Micros(0)), 0)


def test_one_sandbox_more_than_allowed_is_refused() -> None:
    limits.check_places(standing(sandboxes=3, sandboxes_max=4))
    with pytest.raises(QuotaExceeded):
        limits.check_places(standing(sandboxes=4, sandboxes_max=4))


def test_money_refusals_have_status_402() -> None:
    assert {e.status for e in (InsufficientFunds, SpendingLimitReached, TrialExhausted)} == {402}


def test_a_limit_below_what_is_held_is_refused_naming_the_field() -> None:
    limits.check_new_limit(Micros(500), in_use=500, field="dailyLimitMicros")
    with pytest.raises(InvalidRequest) as refused:
        limits.check_new_limit(Micros(499), in_use=500, field="dailyLimitMicros")

    assert refused.value.details["issues"][0]["field"] == "dailyLimitMicros"  # type: ignore[index]
