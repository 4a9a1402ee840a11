"""What callers are shown of money and use: limits, totals, receipts, as values."""

from __future__ import annotations

from dataclasses import dataclass

from runtimed.core.ids import SandboxId
from runtimed.core.money import Micros
from runtimed.core.usage import UsageRun, Used


@dataclass(frozen=True, kw_only=True)
class ReceiptLine:
    """One line. `quantity` is for people and rounded; `micros` is exact."""

    what: str
    quantity: str
    unit: str
    usd_per_unit: str
    micros: Micros


@dataclass(frozen=True, kw_only=True)
class Receipt:
    lines: tuple[ReceiptLine, ...]
    total_micros: Micros
    """The sum of the lines, and of what the sandbox's entries charged."""
    held_micros: Micros
    running_ms: int
    cpu_us: int
    """As it was measured, floor or not."""
    outbound_bytes: int
    """What its connections carried out: counted, and priced by no rate."""
    trial_ms: int
    waited_permille: int | None
    """Thousandths of its running time in which no vCPU was busy; None when it never ran."""
    final: bool
    """Nothing will be added any more."""


@dataclass(frozen=True, kw_only=True)
class SandboxMoney:
    """What a sandbox cost so far and what is held for it."""

    charged_micros: int = 0
    held_micros: int = 0
    trial: bool = False


@dataclass(frozen=True, kw_only=True)
class LimitsShown:
    """What bounds a key and its account now."""

    day_limit: Micros | None
    day_settled: int
    day_held: int
    trial_left_ms: int
    """Neither used nor held."""
    trial_ms: int
    trial_held_ms: int
    """Of all of the account's sandboxes that the trial pays."""
    prepaid: bool
    available: int
    """Credit that is not held; an account that pays afterwards has none and needs none."""
    owed: int
    """What it used and has not paid; what is held is not among it."""
    held: int
    """For what all of the account's sandboxes may still use, whoever pays when."""
    spent: int
    """Charged to the account in all its life."""
    week_spent: int
    """Charged in the last seven days: what the pace of spending is taken from."""
    sandboxes: int
    sandboxes_max: int | None

    @property
    def day_used(self) -> int:
        return self.day_settled + self.day_held


@dataclass(frozen=True, kw_only=True)
class SandboxUse:
    """One sandbox's part of a usage report."""

    sandbox_id: SandboxId
    name: str | None
    used: Used
    mib_ms: int
    micros: int
    last_at_s: float


@dataclass(frozen=True, kw_only=True)
class UsageShown:
    """What was used and spent in a time."""

    since_s: float
    until_s: float
    used: Used
    mib_ms: int
    micros: int
    sandboxes: int
    newest: tuple[SandboxUse, ...]
    """The most recent ones, newest first."""


@dataclass(frozen=True, kw_only=True)
class UsagePage:
    """A page of usage, oldest first."""

    runs: tuple[UsageRun, ...]
    next_cursor: str | None
    final_through_s: float
    """Nothing will be added before this moment any more."""
