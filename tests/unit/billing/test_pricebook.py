"""A price book is read exactly, and one that could be read two ways is refused with the field."""

from __future__ import annotations

from datetime import date
from fractions import Fraction

import pytest

from runtimed.billing.pricebook import PriceBookError, Rates, default_book, read_book, starts_at_s

PERIOD = """
[[period]]
from = {first}
{until}
cpu_usd_per_vcpu_hour = {cpu}
memory_usd_per_gib_hour = "0.0078125"
paused_usd_per_gb_30_days = "0.10"
trial_hours = {trial}
"""


def period(first: str, until: str = "", *, cpu: str = '"0.0175"', trial: str = "50") -> str:
    return PERIOD.format(first=first, until=f"until = {until}" if until else "", cpu=cpu, trial=trial)


def book(*periods: str, currency: str = "USD") -> str:
    return f'currency = "{currency}"\n' + "".join(periods)


def wrong_fields(text: str) -> set[str]:
    with pytest.raises(PriceBookError) as refused:
        read_book(text)
    return {issue["field"] for issue in refused.value.issues}


def test_the_default_book_has_the_published_rates() -> None:
    period = default_book().at(1_795_000_000)

    assert period.rates == Rates(
        cpu_vcpu_hour=Fraction(17_500),
        memory_gib_hour=Fraction(15_625, 2),
        paused_gb_30_days=Fraction(100_000),
    )
    assert period.trial_hours == 50


def test_a_rate_is_the_same_with_and_without_quotes() -> None:
    quoted, bare = (read_book(book(period("2025-01-01", cpu=cpu))) for cpu in ('"0.0175"', "0.0175"))

    assert quoted == bare


def test_each_day_has_the_rates_of_its_period() -> None:
    dated = read_book(book(period("2025-01-01", "2026-01-01"), period("2026-01-01", cpu='"0.02"')))
    turn = starts_at_s(dated.periods[1])

    assert dated.at(turn - 1).rates.cpu_vcpu_hour == 17_500
    assert dated.at(turn).rates.cpu_vcpu_hour == 20_000
    assert dated.at(0) is dated.periods[0]


def test_a_period_without_an_end_ends_where_the_next_begins() -> None:
    dated = read_book(book(period("2025-01-01"), period("2026-01-01")))

    assert dated.periods[0].until == date(2026, 1, 1)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (book(period("2025-01-01", "2025-06-01"), period("2025-07-01")), "period[1].from"),  # a gap
        (book(period("2025-01-01", "2025-08-01"), period("2025-07-01")), "period[1].from"),  # an overlap
        (book(period("2025-07-01"), period("2025-01-01")), "period[1].from"),
        (book(period("2025-07-01"), period("2025-07-01")), "period[1].from"),
        (book(period("2025-01-01", "2025-06-01")), "period[0].until"),  # nothing is priced after it
        (book(period("2025-06-01", "2025-01-01"), period("2025-06-02")), "period[0].until"),
        (book(period("2025-01-01"), currency="EUR"), "currency"),
        (book(period("2025-01-01", cpu='"-0.0175"')), "period[0].cpu_usd_per_vcpu_hour"),
        (book(period("2025-01-01", cpu="-0.0175")), "period[0].cpu_usd_per_vcpu_hour"),
        (book(period("2025-01-01", cpu='"17500"')), "period[0].cpu_usd_per_vcpu_hour"),
        (book(period("2025-01-01", cpu="1e30")), "period[0].cpu_usd_per_vcpu_hour"),
        (book(period("2025-01-01", cpu="nan")), "period[0].cpu_usd_per_vcpu_hour"),
        (book(period("2025-01-01", cpu="true")), "period[0].cpu_usd_per_vcpu_hour"),
        (book(period("2025-01-01", cpu='"0.0175 EUR"')), "period[0].cpu_usd_per_vcpu_hour"),
        (book(period("2025-01-01", trial="-1")), "period[0].trial_hours"),
        (book(period("2025-01-01", trial="1.5")), "period[0].trial_hours"),
        (book(period('"soon"')), "period[0].from"),
        (book(period("2025-01-01T00:00:00Z")), "period[0].from"),
        (book(period("2025-01-01") + "\ndiscount = 1"), "period[0].discount"),
        (book(), "period"),
        ("currency = ", "file"),
    ],
)
def test_a_wrong_book_is_refused_naming_the_field(text: str, field: str) -> None:
    assert field in wrong_fields(text)


def test_every_wrong_field_is_named_at_once() -> None:
    text = book(period("2025-01-01", cpu='"-1"', trial="-5"), currency="EUR")

    assert wrong_fields(text) == {"currency", "period[0].cpu_usd_per_vcpu_hour", "period[0].trial_hours"}


def test_rates_are_kept_with_a_quote_exactly() -> None:
    rates = default_book().periods[0].rates

    assert Rates.from_json(rates.to_json()) == rates
