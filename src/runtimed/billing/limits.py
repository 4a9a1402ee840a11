"""Decides whether money, hours or places may be taken, before anything starts; refuses with the limit and the figures.

Every function is pure: the caller reads the standing and writes the entries in one transaction, so that a hundred
creates at once are a hundred decisions one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runtimed.billing.rating import HOUR_MS, Funding
from runtimed.core.errors import (
    BudgetExceeded,
    InsufficientFunds,
    InvalidRequest,
    QuotaExceeded,
    SpendingLimitReached,
    TrialExhausted,
)
from runtimed.core.money import AskedFunding, Micros, format_usd
from runtimed.core.wording import counted

TRIAL_FLOOR_MAX_MILLIS = 250
"""What is guaranteed to somebody is not there for anybody else: without credit a quarter of a vCPU at most."""
DAY_S = 86_400
"""A daily limit looks at any 24 hours, not at a calendar day: nobody gets two days' money around midnight."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What an account and one of its keys have at this moment."""

    prepaid: bool
    available: int = 0
    """Microdollars of credit that are not held."""
    trial_left_ms: int = 0
    """Of the trial, not held."""
    day_limit: Micros | None = None
    """The key's limit over 24 hours."""
    day_settled: int = 0
    """Charged by the key in the last 24 hours."""
    day_held: int = 0
    """Held now for what the key runs."""
    sandboxes: int = 0
    """Of the account, not stopped and not paused."""
    sandboxes_max: int | None = None

    @property
    def day_left(self) -> int | None:
        return None if self.day_limit is None else max(0, self.day_limit - self.day_settled - self.day_held)


def settled_in_a_day(charges: Iterable[tuple[float, int]], *, now_s: float) -> int:
    """The part of charges (second, microdollars) that the last 24 hours saw."""
    return sum(micros for at_s, micros in charges if at_s > now_s - DAY_S)


def choose_funding(asked: AskedFunding, standing: Standing, *, worst: int, lease_ms: int) -> Funding:
    """What pays for a new sandbox.

    `trial` takes the trial's hours and never falls back to credit; `paid` takes credit; without either, credit pays
    where it can, and the trial where only that can.

    Raises:
        TrialExhausted, InsufficientFunds.
    """
    if asked == "trial":
        check_trial(standing, lease_ms)
        return "trial"
    paid = not standing.prepaid or standing.available >= worst
    if asked is None and not paid and standing.trial_left_ms >= lease_ms:
        return "trial"
    check_credit(standing, worst)
    return "credit"


def check_hold(funding: Funding, standing: Standing, amount: int) -> None:
    """Whether `amount` more may be held: for a create, a wake, an extension or a renewal.

    Raises:
        SpendingLimitReached, InsufficientFunds, TrialExhausted: nothing may be charged or started.
    """
    if amount <= 0:
        return
    if funding == "trial":
        check_trial(standing, amount)
        return
    check_day(standing, amount)
    check_credit(standing, amount)


def check_day(standing: Standing, amount: int) -> None:
    """Settled and held money of the last 24 hours stay within the key's limit. Raises SpendingLimitReached."""
    left = standing.day_left
    if left is None or amount <= left:
        return
    raise SpendingLimitReached(
        f"this key may spend {format_usd(standing.day_limit or 0)} in 24 hours and has {format_usd(left)} left; "
        f"this could cost {format_usd(amount)}",
        hint="end a sandbox to free what it holds, ask for a shorter lease, or have the operator raise the limit",
        details={
            "limitMicros": standing.day_limit,
            "settledMicros": standing.day_settled,
            "heldMicros": standing.day_held,
            "askedMicros": amount,
        },
    )


def check_credit(standing: Standing, amount: int) -> None:
    """Raises InsufficientFunds where an account that pays before has less than this."""
    if standing.prepaid and standing.available < amount:
        raise InsufficientFunds(
            f"the account has {format_usd(standing.available)} of credit; this could cost {format_usd(amount)}",
            hint="the operator adds credit with `runtime admin credit add`",
            details={"availableMicros": standing.available, "askedMicros": amount},
        )


def check_trial(standing: Standing, lease_ms: int) -> None:
    """Raises TrialExhausted where the trial has less time left than the lease."""
    if standing.trial_left_ms < lease_ms:
        raise TrialExhausted(
            f"the trial has {_hours(standing.trial_left_ms)} hours left; this lease needs {_hours(lease_ms)}",
            hint="ask for a shorter lease, or without the trial",
            details={"leftSeconds": standing.trial_left_ms // 1000, "askedSeconds": lease_ms // 1000},
        )


def check_floor(funding: Funding, floor_millis: int) -> None:
    """Whether what pays may have so much CPU guaranteed. Raises InvalidRequest."""
    if funding == "trial" and floor_millis > TRIAL_FLOOR_MAX_MILLIS:
        why = f"must be at most {TRIAL_FLOOR_MAX_MILLIS} where the trial pays, not {floor_millis}"
        raise InvalidRequest([{"field": "cpuFloorMillis", "message": why}], hint="pay with credit, or ask for less")


def check_budget(worst: int, max_cost: Micros | None) -> None:
    """Whether a first lease stays within what its create allows. Raises BudgetExceeded."""
    if max_cost is not None and worst > max_cost:
        raise BudgetExceeded(
            f"the first lease could cost {format_usd(worst)}, above the maximum of {format_usd(max_cost)}",
            hint="ask for a shorter lease or a smaller sandbox, or allow more",
            details={"maxCostMicros": max_cost, "worstCaseMicros": worst},
        )


def check_places(standing: Standing) -> None:
    """Whether the account may have one more sandbox. Raises QuotaExceeded."""
    if standing.sandboxes_max is not None and standing.sandboxes >= standing.sandboxes_max:
        raise QuotaExceeded(
            f"the account may have {counted(standing.sandboxes_max, 'sandbox')} at once and has {standing.sandboxes}",
            hint="end or pause one, or have the operator raise the limit",
            details={"limit": "sandbox.count", "max": standing.sandboxes_max, "used": standing.sandboxes},
        )


def check_new_limit(limit: Micros, *, in_use: int, field: str) -> None:
    """A limit may not be set below what is settled and held under it already. Raises InvalidRequest."""
    if limit < in_use:
        why = f"{format_usd(limit)} is below what is spent and held already ({format_usd(in_use)})"
        raise InvalidRequest([{"field": field, "message": why}])


def _hours(milliseconds: int) -> str:
    whole, rest = divmod(max(0, milliseconds), HOUR_MS)
    return f"{whole}.{rest * 100 // HOUR_MS:02d}"
