"""Reads the price book: what each thing costs from which day on. A book that could be read two ways is refused."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction
from importlib import resources

from runtimed.core.money import MICROS_PER_USD

RATE_MAX_USD = 10_000
"""No hour of a vCPU, GiB or GB-month costs this much: a rate above it has lost its decimal point."""
TRIAL_HOURS_MAX = 1_000_000
_DECIMAL = re.compile(r"\d{1,9}(\.\d{1,12})?")


class PriceBookError(Exception):
    """The book cannot be used; the message names every wrong field."""

    def __init__(self, issues: Sequence[Mapping[str, str]]) -> None:
        super().__init__("; ".join(f"{i['field']}: {i['message']}" for i in issues))
        self.issues = [dict(i) for i in issues]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Exact microdollars for one unit of each thing."""

    cpu_vcpu_hour: Fraction
    memory_gib_hour: Fraction
    paused_gb_30_days: Fraction

    def to_json(self) -> dict[str, str]:
        """As exact fractions in text, for keeping a quote."""
        return {f.name: str(getattr(self, f.name)) for f in fields(self)}

    @staticmethod
    def from_json(data: Mapping[str, str]) -> Rates:
        return Rates(**{f.name: Fraction(data[f.name]) for f in fields(Rates)})


@dataclass(frozen=True, kw_only=True)
class Period:
    """What holds from one day (00:00 UTC) until another, which is not part of it."""

    first: date
    until: date | None
    rates: Rates
    trial_hours: int


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """Periods in order, without gap or overlap; the last one is open."""

    periods: tuple[Period, ...]

    def at(self, now_s: float) -> Period:
        """The period of a moment (seconds since 1970). A clock that stands before the book gets its first period."""
        day = datetime.fromtimestamp(now_s, UTC).date()
        for period in reversed(self.periods):
            if period.first <= day:
                return period
        return self.periods[0]


_RATE_KEYS = {
    "cpu_usd_per_vcpu_hour": "cpu_vcpu_hour",
    "memory_usd_per_gib_hour": "memory_gib_hour",
    "paused_usd_per_gb_30_days": "paused_gb_30_days",
}
_PERIOD_KEYS = {*_RATE_KEYS, "from", "until", "trial_hours"}


def default_book() -> PriceBook:
    """The book that comes with the package."""
    return read_book(resources.files("runtimed.billing").joinpath("prices/default.toml").read_text())


def read_book(text: str) -> PriceBook:
    """A price book from its TOML text. Raises PriceBookError naming every wrong field at once."""
    try:
        raw = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise PriceBookError([_issue("file", f"is not TOML: {error}")]) from error
    issues = [_issue(name, "there is no such field") for name in sorted(raw.keys() - {"currency", "period"})]
    if raw.get("currency") != "USD":
        issues.append(
            _issue("currency", f"must be USD, the only currency of this service, not {raw.get('currency')!r}")
        )
    tables = raw.get("period")
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise PriceBookError([*issues, _issue("period", "at least one [[period]] is needed")])
    read = [_period(table, f"period[{place}]", issues) for place, table in enumerate(tables)]
    periods = [period for period in read if period is not None]
    if len(periods) == len(tables):
        periods = _joined(periods, issues)
    if issues:
        raise PriceBookError(issues)
    return PriceBook(periods=tuple(periods))


def _period(table: Mapping[str, object], where: str, issues: list[dict[str, str]]) -> Period | None:
    before = len(issues)
    issues += [_issue(f"{where}.{name}", "there is no such field") for name in sorted(table.keys() - _PERIOD_KEYS)]
    first, until = (_day(table, f"{where}.{name}", name, issues) for name in ("from", "until"))
    rates = {field: _rate(table.get(key), f"{where}.{key}", issues) for key, field in _RATE_KEYS.items()}
    hours = table.get("trial_hours", 0)
    if type(hours) is not int or not 0 <= hours <= TRIAL_HOURS_MAX:
        issues.append(_issue(f"{where}.trial_hours", f"must be a whole number from 0 to {TRIAL_HOURS_MAX}"))
        hours = 0
    if first is None or len(issues) > before:
        return None
    return Period(first=first, until=until, rates=Rates(**rates), trial_hours=hours)


def _day(table: Mapping[str, object], where: str, name: str, issues: list[dict[str, str]]) -> date | None:
    value = table.get(name)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if value is not None or name == "from":
        issues.append(_issue(where, "must be a day such as 2026-01-01"))
    return None


def _rate(value: object, where: str, issues: list[dict[str, str]]) -> Fraction:
    """Dollars as text or TOML number. A float never comes here: TOML is read with exact decimals."""
    text = str(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value
    if text is None:
        issues.append(_issue(where, "is missing"))
    elif not isinstance(text, str) or text.startswith("-") or not _DECIMAL.fullmatch(text):
        issues.append(_issue(where, f"must be US dollars from 0 on with at most 12 decimals, not {value!r}"))
    elif Fraction(text) > RATE_MAX_USD:
        issues.append(_issue(where, f"{text} is absurd: no rate is above {RATE_MAX_USD} dollars"))
    else:
        return Fraction(text) * MICROS_PER_USD
    return Fraction(0)


def _joined(periods: Sequence[Period], issues: list[dict[str, str]]) -> list[Period]:
    """Periods with their ends; each must end where the next begins."""
    for place, (period, after) in enumerate(zip(periods, [*periods[1:], None], strict=True)):
        where = f"period[{place}].until"
        if period.until is not None and period.until <= period.first:
            issues.append(_issue(where, f"{period.until} is not after the period's own start {period.first}"))
        if after is None:
            if period.until is not None:
                issues.append(_issue(where, f"nothing is priced from {period.until} on: leave the last period open"))
        elif after.first <= period.first or (period.until is not None and after.first < period.until):
            start = period.until or period.first
            issues.append(_issue(f"period[{place + 1}].from", f"{after.first} overlaps the period before ({start})"))
        elif period.until is not None and after.first > period.until:
            gap = f"leaves a gap: nothing is priced from {period.until} to {after.first}"
            issues.append(_issue(f"period[{place + 1}].from", gap))
    return [
        Period(first=p.first, until=n.first if n else None, rates=p.rates, trial_hours=p.trial_hours)
        for p, n in zip(periods, [*periods[1:], None], strict=True)
    ]


def starts_at_s(period: Period) -> float:
    """The first moment of a period, seconds since 1970."""
    return datetime.combine(period.first, time(), UTC).timestamp()


def _issue(field: str, message: str) -> dict[str, str]:
    return {"field": field, "message": message}
