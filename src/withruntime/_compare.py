"""Works out what the same work costs at each provider of a dated rate table: exact fractions, no I/O but the table.

The only place with this arithmetic: the command line, the console and the service's own tests ask here.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any, Literal, get_args

Counts = Literal["cpu_used", "cpu_held", "memory", "disk"]
Per = Literal["second", "hour"]

CALLS_MAX = 10**12
SECONDS_MAX = 86_400
VCPU_MAX = 16
MEMORY_MIN_MIB, MEMORY_MAX_MIB = 128, 65_536
"""Bounds of what may be asked: those of a sandbox of ours, and numbers of calls that somebody could make."""

_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?")
_SECONDS = {"second": 1, "hour": 3600}


@dataclass(frozen=True, kw_only=True)
class Work:
    """A month of work: so many calls, each in a sandbox of this size for so long."""

    calls: int
    seconds: Fraction
    """How long a sandbox exists for one call."""
    cpu_seconds: Fraction
    """CPU that one call uses in it."""
    vcpu: int = 2
    memory_mib: int = 4096


class WrongWork(ValueError):
    """The work cannot be priced; `issues` names every wrong field."""

    def __init__(self, issues: list[dict[str, str]]) -> None:
        super().__init__("; ".join(f"{issue['field']}: {issue['message']}" for issue in issues))
        self.issues = issues


@dataclass(frozen=True, kw_only=True)
class ProviderRate:
    """One rate of the table, with the day it was entered and where it comes from."""

    counts: Counts
    usd: Fraction
    per: Per
    entered: date
    source: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A provider: its rates and the sizes that it sells."""

    name: str
    rates: tuple[ProviderRate, ...]
    note: str = ""
    vcpu_per_core: int = 1
    memory_gib_per_vcpu: int = 0
    disk_gb_per_memory_gib: int = 0
    max_vcpu: int | None = None
    max_memory_gib: int | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the work costs at one provider."""

    provider: Provider
    usd: Decimal | None
    """To the cent, half a cent rounded up; None where the provider does not sell the size."""
    parts: tuple[tuple[ProviderRate, Decimal], ...] = ()
    """Each rate's share, to the cent; rounded apart, so that their sum may differ from `usd` by a cent."""


def read_work(values: Mapping[str, object]) -> Work:
    """Numbers as a person or a program writes them. Raises WrongWork naming every wrong field."""
    issues: list[dict[str, str]] = []
    calls = _whole(values, "calls", (1, CALLS_MAX), issues)
    seconds = _number(values, "seconds", issues)
    cpu_seconds = _number(values, "cpu_seconds", issues)
    vcpu = _whole(values, "vcpu", (1, VCPU_MAX), issues)
    memory = _whole(values, "memory", (MEMORY_MIN_MIB, MEMORY_MAX_MIB), issues)
    if seconds is not None and not 0 < seconds <= SECONDS_MAX:
        issues.append(_issue("seconds", f"must be above 0 and at most {SECONDS_MAX}"))
    elif seconds is not None and cpu_seconds is not None and vcpu is not None and cpu_seconds > seconds * vcpu:
        issues.append(_issue("cpu_seconds", f"{vcpu} vCPU can use at most {float(seconds * vcpu):g} in this time"))
    if issues or calls is None or seconds is None or cpu_seconds is None or vcpu is None or memory is None:
        raise WrongWork(issues)
    return Work(calls=calls, seconds=seconds, cpu_seconds=cpu_seconds, vcpu=vcpu, memory_mib=memory)


def work_of(usage: Mapping[str, Any]) -> Work | None:
    """What an account used, as its usage report says, as one piece of work; None where it used nothing.

    Sizes are those that it had on average over its running time.
    """
    used = {kind["kind"]: Fraction(str(kind["quantity"])) for kind in usage["kinds"]}
    if not used["running"]:
        return None
    memory_gib = used["memory"] * 3600 / used["running"]
    return Work(
        calls=1,
        seconds=used["running"],
        cpu_seconds=used["cpu"],
        memory_mib=max(MEMORY_MIN_MIB, round(memory_gib * 1024)),
    )


def compare(work: Work) -> list[Comparison]:
    """The work at every provider of the table, in its order."""
    return [_priced(provider, work) for provider in providers()]


def cost_usd(provider: Provider, work: Work) -> Fraction | None:
    """The exact cost in dollars; None where the provider does not sell the size."""
    units = _units(provider, work)
    if units is None:
        return None
    return sum((units[rate.counts] * rate.usd / _SECONDS[rate.per] for rate in provider.rates), Fraction(0))


def cents(usd: Fraction) -> Decimal:
    """Dollars to the cent, half a cent rounded up."""
    return Decimal(int(usd * 100 + Fraction(1, 2))) / 100


@cache
def providers() -> tuple[Provider, ...]:
    """The rate table that comes with the package."""
    raw = tomllib.loads(resources.files("withruntime").joinpath("rates/providers.toml").read_text(encoding="utf-8"))
    return tuple(_provider(table) for table in raw["provider"])


def _priced(provider: Provider, work: Work) -> Comparison:
    units, whole = _units(provider, work), cost_usd(provider, work)
    if units is None or whole is None:
        return Comparison(provider=provider, usd=None)
    parts = tuple((rate, cents(units[rate.counts] * rate.usd / _SECONDS[rate.per])) for rate in provider.rates)
    return Comparison(provider=provider, usd=cents(whole), parts=parts)


def _units(provider: Provider, work: Work) -> dict[Counts, Fraction] | None:
    """Unit-seconds of everything that may be counted, in the size that this provider would sell."""
    memory_gib = max(Fraction(work.memory_mib, 1024), Fraction(provider.memory_gib_per_vcpu * work.vcpu))
    too_wide = provider.max_vcpu is not None and work.vcpu > provider.max_vcpu
    too_large = provider.max_memory_gib is not None and memory_gib > provider.max_memory_gib
    if too_wide or too_large:
        return None
    existing_s = work.calls * work.seconds
    return {
        "cpu_used": work.calls * work.cpu_seconds,
        "cpu_held": existing_s * work.vcpu / provider.vcpu_per_core,
        "memory": existing_s * memory_gib,
        "disk": existing_s * memory_gib * provider.disk_gb_per_memory_gib,
    }


def _provider(table: Mapping[str, Any]) -> Provider:
    for rate in table["rate"]:
        if rate["counts"] not in get_args(Counts) or rate["per"] not in get_args(Per):
            raise ValueError(f"the rate table of {table['name']} has a rate that nobody can count: {rate}")
    rates = tuple(ProviderRate(**{**rate, "usd": Fraction(rate["usd"])}) for rate in table["rate"])
    return Provider(rates=rates, **{name: value for name, value in table.items() if name != "rate"})


def _number(values: Mapping[str, object], field: str, issues: list[dict[str, str]]) -> Fraction | None:
    text = str(values.get(field, "")).strip()
    if not _NUMBER.fullmatch(text):
        why = "is missing" if not text else f"{text!r} is not a number from 0 on (at most 9 decimals)"
        issues.append(_issue(field, why))
        return None
    return Fraction(text)


def _whole(
    values: Mapping[str, object], field: str, bounds: tuple[int, int], issues: list[dict[str, str]]
) -> int | None:
    text = str(values.get(field, "")).strip()
    if not text:
        issues.append(_issue(field, "is missing"))
    elif not re.fullmatch(r"\d{1,15}", text) or not bounds[0] <= int(text) <= bounds[1]:
        issues.append(_issue(field, f"{text!r} is not a whole number from {bounds[0]} to {bounds[1]}"))
    else:
        return int(text)
    return None


def _issue(field: str, message: str) -> dict[str, str]:
    return {"field": field, "message": message}
