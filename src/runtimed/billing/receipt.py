"""Writes a sandbox's receipt: lines that sum to its ledger entries, and the share of its time that it waited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from runtimed.billing.rating import HOUR_MS, HOUR_US, MB_PER_GB, MIB_PER_GIB, Line, LineKind, rate
from runtimed.billing.tab import Tab
from runtimed.core.accounting import Receipt, ReceiptLine
from runtimed.core.ledger import Entry
from runtimed.core.money import MICROS_PER_USD, Micros
from runtimed.core.usage import MB

PART_DECIMALS = 6
"""Quantities for people: an hour to a few milliseconds, a GiB-hour to a few MiB-seconds."""

BYTE_DECIMALS = 9
"""Of a GB: exact."""


@dataclass(frozen=True)
class _Unit:
    """How a kind of line is called, and what it is counted in."""

    words: str
    unit: str
    size: int
    """Of the counter's own units."""
    micros_each: Fraction


def receipt(tab: Tab) -> Receipt:
    """The receipt of a tab as it stands; it may still grow while the tab is open."""
    rates = tab.terms.rates
    cpu = "CPU used"
    if floor := tab.terms.cpu_floor_millis:
        cpu = f"CPU used, at least the floor of {floor} thousandths of a vCPU"
    priced_by: Mapping[LineKind, _Unit] = {
        "cpu": _Unit(cpu, "vCPU-hour", HOUR_US, rates.cpu_vcpu_hour),
        "memory": _Unit("memory reserved", "GiB-hour", MIB_PER_GIB * HOUR_MS, rates.memory_gib_hour),
        "paused_storage": _Unit(
            "storage while paused", "GB for 30 days", MB_PER_GB * 30 * 24 * HOUR_MS, rates.paused_gb_30_days
        ),
    }
    trial = tab.terms.funding == "trial"
    lines = [_line(line, priced_by[line.kind], trial=trial) for line in rate(tab.used, tab.terms).lines]
    priced = sum(line.micros for line in lines)
    charged = 0 if trial else tab.charged
    if charged != priced:
        lines.append(_plain("above the cap on its whole life: not charged", charged - priced))
    if tab.used.outbound_bytes:
        lines.append(_outbound(tab.used.outbound_bytes))
    credited = rate(tab.credited, tab.terms).total
    if credited:
        lines.append(_plain("while the host could not be reached", credited))
        lines.append(_plain("credited: the host could not be reached", -credited))
    return Receipt(
        lines=tuple(lines),
        total_micros=Micros(sum(line.micros for line in lines)),
        held_micros=Micros(0 if trial else tab.held),
        running_ms=tab.used.running_ms,
        cpu_us=tab.used.cpu_us,
        outbound_bytes=tab.used.outbound_bytes,
        trial_ms=tab.charged if trial else 0,
        waited_permille=waited_permille(tab.used.cpu_us, tab.used.running_ms),
        final=tab.closed,
    )


def waited_permille(cpu_us: int, running_ms: int) -> int | None:
    """One vCPU's worth of work fills the time; a second busy one cannot fill it again."""
    if running_ms <= 0:
        return None
    running_us = running_ms * 1000
    return (running_us - min(cpu_us, running_us)) * 1000 // running_us


def paid_by_entries(entries: Iterable[Entry]) -> int:
    """What a sandbox's entries charged its customer, in microdollars; the operator's own write-offs cancel out."""
    return sum(e.amount for e in entries if e.reason == "charge" and e.target == "revenue")


def _line(line: Line, unit: _Unit, *, trial: bool) -> ReceiptLine:
    return ReceiptLine(
        what=unit.words + (" (trial)" if trial else ""),
        quantity=_decimal(Fraction(line.quantity, unit.size), PART_DECIMALS),
        unit=unit.unit,
        usd_per_unit="0" if trial else _decimal(unit.micros_each / MICROS_PER_USD, 12),
        micros=line.micros,
    )


def _outbound(size: int) -> ReceiptLine:
    """The price book has no rate for it: shown, at zero."""
    return ReceiptLine(
        what="outbound traffic: not charged",
        quantity=_decimal(Fraction(size, MB_PER_GB * MB), BYTE_DECIMALS),
        unit="GB",
        usd_per_unit="0",
        micros=Micros(0),
    )


def _plain(what: str, micros: int) -> ReceiptLine:
    return ReceiptLine(what=what, quantity="", unit="", usd_per_unit="", micros=Micros(micros))


def _decimal(value: Fraction, places: int) -> str:
    """Rounded down to so many places, without zeros at the end."""
    whole, part = divmod(value.numerator * 10**places // value.denominator, 10**places)
    digits = f"{part:0{places}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
