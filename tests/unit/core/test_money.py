"""Money is read and written exactly; what is not US dollars is refused with its field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimed.core.errors import InvalidRequest
from runtimed.core.money import MICROS_MAX, checked, format_usd, parse_usd


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("12", 12_000_000),
        ("0.5", 500_000),
        ("$3.20", 3_200_000),
        ("3.20 USD", 3_200_000),
        ("usd 1", 1_000_000),
        ("1,000.000001", 1_000_000_001),
        ("0.100000000", 100_000),
        ("0", 0),
        ("-0", 0),
    ],
)
def test_dollars_are_read_as_people_write_them(text: str, micros: int) -> None:
    assert parse_usd(text, field="amount") == micros


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-1", "negative"),
        ("12 EUR", "currency"),
        ("GBP 12", "currency"),
        ("$12 USD", "twice"),
        ("0.0000001", "microdollar"),
        ("1e3", "not an amount"),
        ("twelve", "not an amount"),
        ("", "not an amount"),
        ("nan", "not an amount"),
        ("1000000000.01", "above"),
        ("9" * 15, "above"),
    ],
)
def test_what_is_not_an_amount_is_refused_naming_the_field(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_usd(text, field="creditMicros")

    issue = refused.value.details["issues"][0]  # type: ignore[index]
    assert issue["field"] == "creditMicros"
    assert why in issue["message"]


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, MICROS_MAX + 1])
def test_only_whole_microdollars_from_zero_on_are_taken(value: object) -> None:
    with pytest.raises(InvalidRequest):
        checked(value, field="maxCostMicros")


@given(st.integers(min_value=0, max_value=MICROS_MAX))
def test_what_is_written_is_read_back_exactly(micros: int) -> None:
    assert parse_usd(format_usd(micros), field="amount") == micros


def test_amounts_are_written_exactly_with_at_least_two_decimals() -> None:
    assert [format_usd(m) for m in (0, 31_250, 12_500_000, -1_000_000, 1)] == [
        "$0.00",
        "$0.03125",
        "$12.50",
        "-$1.00",
        "$0.000001",
    ]
