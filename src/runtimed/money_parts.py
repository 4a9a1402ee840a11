"""Makes the parts that charge for sandboxes, from the settings' price book and the host's own accounting."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from runtimed.billing.pricebook import PriceBook, PriceBookError, default_book, read_book
from runtimed.control.accounting import Accounting
from runtimed.control.charging import Charging, ChargingParts
from runtimed.control.life import Lives
from runtimed.control.metering import Metering
from runtimed.core.clock import Clock
from runtimed.core.egress import EgressDoor
from runtimed.core.ids import SandboxId
from runtimed.core.money import MICROS_PER_USD
from runtimed.core.ports import Meter, Node
from runtimed.meter.counting import SampleCount
from runtimed.node.metering import HostMeter
from runtimed.settings import CommandError, Settings
from runtimed.store.books import Books
from runtimed.store.database import Database
from runtimed.store.usage_joining import DAY_S, UsageJoining
from runtimed.store.usage_reports import UsageReports

USAGE_FOLDER = "usage"
"""Samples that were not counted yet, in the state folder."""


@dataclass(frozen=True, kw_only=True)
class MoneyParts:
    books: Books
    meter: Meter
    charging: Charging
    accounting: Accounting


def make_money(
    settings: Settings, *, node: Node, database: Database, clock: Clock, door: EgressDoor | None = None
) -> MoneyParts:
    """Raises CommandError for a price book that cannot be used."""
    prices, books = price_book(settings), Books(database)

    def sent(sandbox_id: SandboxId) -> int:
        return door.traffic(sandbox_id).sent if door else 0  # without a door nothing goes out

    meter = HostMeter(settings.state_dir / USAGE_FOLDER, clock, node.vmm_pid, sent)
    parts = ChargingParts(books=books, meter=meter, counter=SampleCount(), prices=prices, clock=clock)
    charging = Charging(parts)
    return MoneyParts(
        books=books,
        meter=meter,
        charging=charging,
        accounting=Accounting(charging, books, UsageReports(database), prices=prices, clock=clock),
    )


def make_metering(settings: Settings, money: MoneyParts, *, lives: Lives, database: Database, clock: Clock) -> Metering:
    """The reconciler over these parts."""
    return Metering(
        lives=lives,
        charging=money.charging,
        books=money.books,
        meter=money.meter,
        clock=clock,
        joining=UsageJoining(database),
        detail_s=settings.usage_detail_days * DAY_S,
    )


def shown_periods(book: PriceBook) -> list[dict[str, str | None]]:
    """The book for the operator, in dollars."""
    return [
        {
            "from": period.first.isoformat(),
            "until": period.until.isoformat() if period.until else None,
            "cpu_usd_per_vcpu_hour": _usd(period.rates.cpu_vcpu_hour),
            "memory_usd_per_gib_hour": _usd(period.rates.memory_gib_hour),
            "paused_usd_per_gb_30_days": _usd(period.rates.paused_gb_30_days),
            "trial_hours": str(period.trial_hours),
        }
        for period in book.periods
    ]


def _usd(micros: Fraction) -> str:
    """Exact: a book's rates have at most 12 decimals."""
    return f"{Decimal(micros.numerator) / Decimal(micros.denominator) / MICROS_PER_USD:f}"


def price_book(settings: Settings) -> PriceBook:
    """The operator's book, else the one that comes with the package. Raises CommandError."""
    if not settings.price_book:
        return default_book()
    try:
        return read_book(Path(settings.price_book).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"the price book {settings.price_book} cannot be read: {error.strerror}") from error
    except (PriceBookError, UnicodeDecodeError) as error:
        raise CommandError(f"the price book {settings.price_book} cannot be used: {error}") from error
