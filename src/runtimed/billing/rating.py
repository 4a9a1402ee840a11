"""Prices use: whole counters and exact rates in, whole microdollars a line out.

The rounding rule, once for everything: a line is the exact price of a sandbox's use *so far*, rounded down in the
customer's favour. What an interval costs is the difference between two such lines, so that the part of a
microdollar that was cut off is carried to the next interval, and splitting an interval never changes the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from runtimed.billing.pricebook import Rates
from runtimed.core.money import Micros
from runtimed.core.usage import Used

Funding = Literal["credit", "trial"]
"""What pays: money, or the trial's hours."""
LineKind = Literal["cpu", "memory", "paused_storage"]

HOUR_MS = 3_600_000
HOUR_US = HOUR_MS * 1000
DAYS_30_MS = 30 * 24 * HOUR_MS
MIB_PER_GIB = 1024
MB_PER_GB = 1000
MILLIS = 1000


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What was agreed when a sandbox was created. Later changes of the price book do not touch it."""

    rates: Rates
    vcpu: int
    memory_mib: int
    cpu_floor_millis: int = 0
    """Thousandths of a vCPU that are guaranteed and paid also when unused; 0 unless asked for."""
    funding: Funding = "credit"
    max_total_micros: Micros | None = None
    """The most that it may cost in all its life."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a bill."""

    kind: LineKind
    quantity: int
    unit: Literal["vcpu_us", "mib_ms", "mb_ms"]
    micros: Micros


@dataclass(frozen=True, kw_only=True)
class Bill:
    lines: tuple[Line, ...]

    @property
    def total(self) -> Micros:
        return Micros(sum(line.micros for line in self.lines))


def rate(used: Used, terms: Terms) -> Bill:
    """The bill of everything used so far; at zero where the trial pays."""
    cpu_us = billed_cpu_us(used, terms)
    mib_ms = used.running_ms * terms.memory_mib
    rates = terms.rates
    paid = 0 if terms.funding == "trial" else 1
    lines = (
        _line("cpu", cpu_us, rates.cpu_vcpu_hour * paid / HOUR_US),
        _line("memory", mib_ms, rates.memory_gib_hour * paid / (MIB_PER_GIB * HOUR_MS)),
        _line("paused_storage", used.paused_mb_ms, rates.paused_gb_30_days * paid / (MB_PER_GB * DAYS_30_MS)),
    )
    return Bill(lines=tuple(line for line in lines if line.quantity))


def billed_cpu_us(used: Used, terms: Terms) -> int:
    """What was measured; at least the floor that was asked for; never more than all vCPUs busy all the time.

    The cap keeps the process's own overhead from ever costing more than the lease's hold. Floor and cap look at all
    of the time so far, so that a burst counts towards the floor of the quiet minutes around it.
    """
    running_us = used.running_ms * 1000
    floor_us = terms.cpu_floor_millis * running_us // MILLIS
    return min(max(used.cpu_us, floor_us), terms.vcpu * running_us)


def _line(kind: LineKind, quantity: int, each: Fraction) -> Line:
    exact = quantity * each
    unit: dict[LineKind, Literal["vcpu_us", "mib_ms", "mb_ms"]] = {
        "cpu": "vcpu_us",
        "memory": "mib_ms",
        "paused_storage": "mb_ms",
    }
    return Line(kind=kind, quantity=quantity, unit=unit[kind], micros=Micros(exact.numerator // exact.denominator))
