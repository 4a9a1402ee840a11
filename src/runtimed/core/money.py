"""Holds money as whole microdollars: reads what people write, writes what people read, never through a float."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NewType

from runtimed.core.errors import InvalidRequest

Micros = NewType("Micros", int)
"""Microdollars: 1,000,000 is one US dollar."""

AskedFunding = Literal["trial", "paid"] | None
"""What a caller wants to pay with; None leaves it to the service."""


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What the caller of a create allows it to cost, and what it pays with."""

    max_cost_micros: Micros | None = None
    """Of the first lease."""
    max_total_micros: Micros | None = None
    """Of all its life."""
    funding: AskedFunding = None


MICROS_PER_USD = 1_000_000
MICROS_PER_CENT = 10_000
MICROS_MAX = Micros(1_000_000_000 * MICROS_PER_USD)
"""A thousand million dollars: more is a slip of the hand, and every sum stays far inside 64 bits."""
DECIMALS = 6

_AMOUNT = re.compile(r"(?P<sign>-?)\s*(?:(?P<before>[A-Za-z]{3}|\$)\s*)?(?P<whole>\d{1,15})(?:\.(?P<part>\d+))?"
                     r"\s*(?P<after>[A-Za-z]{3}|\$)?")  # fmt: skip
_DOLLARS = frozenset({"$", "USD"})


def parse_usd(text: str, *, field: str) -> Micros:
    """Dollars as people write them (`12`, `0.5`, `$3.20`, `3.20 USD`) as microdollars.

    Raises:
        InvalidRequest: naming `field`, for anything else: another currency, a negative or absurd amount,
            parts of a microdollar.
    """
    found = _AMOUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if found is None:
        raise _wrong(field, f"{text!r} is not an amount in US dollars such as 12.50")
    for currency in (found["before"], found["after"]):
        if currency is not None and currency.upper() not in _DOLLARS:
            raise _wrong(field, f"{currency!r} is not a currency of this service; amounts are in US dollars (USD)")
    if found["before"] and found["after"]:
        raise _wrong(field, f"{text!r} names its currency twice")
    part = (found["part"] or "").rstrip("0")
    if len(part) > DECIMALS:
        raise _wrong(field, f"{text!r} is finer than a microdollar ({DECIMALS} decimals)")
    micros = int(found["whole"]) * MICROS_PER_USD + int(part.ljust(DECIMALS, "0"))
    return checked(-micros if found["sign"] and micros else micros, field=field)


def checked(value: object, *, field: str) -> Micros:
    """A whole number of microdollars from 0 to MICROS_MAX. Raises InvalidRequest naming `field`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(field, "must be a whole number of microdollars")
    if value < 0:
        raise _wrong(field, "must not be negative")
    if value > MICROS_MAX:
        raise _wrong(field, f"must not be above {MICROS_MAX} microdollars ({format_usd(MICROS_MAX)})")
    return Micros(value)


def format_usd(micros: int) -> str:
    """Exact, with at least two decimals: `$0.03125`, `$12.50`, `-$1.00`."""
    whole, part = divmod(abs(micros), MICROS_PER_USD)
    digits = f"{part:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if micros < 0 else ''}${whole}.{digits}"


def _wrong(field: str, why: str) -> InvalidRequest:
    return InvalidRequest([{"field": field, "message": why}])
