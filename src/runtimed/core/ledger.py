"""The ledger's rules: an entry moves an amount between two accounts, is never changed, and its key posts once.

    granted ----> credit:ACCOUNT --hold--> held:SANDBOX --charge--> revenue
    (may be below zero)   ^------release------'             ^
    owed:ACCOUNT works like credit:ACCOUNT but may be       | written_off pays for what the customer
    below zero: what an account without prepayment owes     | could not use; may be below zero

The trial's hours are a second unit (milliseconds) with accounts of the same shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NewType

from runtimed.core.ids import AccountId, KeyId, SandboxId

LedgerAccount = NewType("LedgerAccount", str)
Unit = Literal["micros", "trial_ms"]
Reason = Literal["grant", "hold", "release", "charge", "credit"]

GRANTED = LedgerAccount("granted")
REVENUE = LedgerAccount("revenue")
WRITTEN_OFF = LedgerAccount("written_off")
TRIAL_GRANTED = LedgerAccount("trial_granted")
TRIAL_USED = LedgerAccount("trial_used")

MAY_BE_NEGATIVE = frozenset({"granted", "owed", "written_off", "trial_granted"})
"""Sources. Every other account would spend what is not there."""


def credit(account: AccountId) -> LedgerAccount:
    """What a prepaying account may still spend."""
    return LedgerAccount(f"credit:{account}")


def owed(account: AccountId) -> LedgerAccount:
    """What an account that pays afterwards has used and not paid, as a negative amount."""
    return LedgerAccount(f"owed:{account}")


def held(sandbox: SandboxId) -> LedgerAccount:
    return LedgerAccount(f"held:{sandbox}")


def trial(account: AccountId) -> LedgerAccount:
    """Milliseconds of the trial that are left."""
    return LedgerAccount(f"trial:{account}")


def trial_held(sandbox: SandboxId) -> LedgerAccount:
    return LedgerAccount(f"trial_held:{sandbox}")


def may_be_negative(account: LedgerAccount) -> bool:
    return account.split(":", 1)[0] in MAY_BE_NEGATIVE


def unit_of(account: LedgerAccount) -> Unit:
    return "trial_ms" if account.startswith("trial") else "micros"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Moves `amount` from one account to another. Corrections are new entries."""

    key: str
    """Names what is posted: the same key twice is one entry."""
    at_s: float
    source: LedgerAccount
    target: LedgerAccount
    amount: int
    """Above 0, in the unit of both accounts."""
    reason: Reason
    account_id: AccountId
    key_id: KeyId | None = None
    """The API key that this spends for; a daily limit counts by it."""
    sandbox_id: SandboxId | None = None

    def __post_init__(self) -> None:
        if self.amount <= 0:
            raise ValueError(f"an entry moves something: {self.key} has {self.amount}")
        if self.source == self.target or unit_of(self.source) != unit_of(self.target):
            raise ValueError(f"{self.key} cannot move {unit_of(self.source)} from {self.source} to {self.target}")


class LedgerError(Exception):
    """A defect of ours: nothing was posted."""


class Overdrawn(LedgerError):
    """An account that may not would be below zero."""

    def __init__(self, account: LedgerAccount, balance: int) -> None:
        super().__init__(f"{account} would be at {balance}")
        self.account, self.balance = account, balance


class KeyPostedOtherwise(LedgerError):
    """The key was posted before and moved something else."""


def moves(entries: Iterable[Entry]) -> Mapping[LedgerAccount, int]:
    """By how much each account changes."""
    changed: Counter[LedgerAccount] = Counter()
    for entry in entries:
        changed[entry.source] -= entry.amount
        changed[entry.target] += entry.amount
    return changed


def check_moves(balances: Mapping[LedgerAccount, int], entries: Iterable[Entry]) -> None:
    """Whether these entries may be posted together on these balances. Raises Overdrawn."""
    for account, change in moves(entries).items():
        after = balances.get(account, 0) + change
        if change < 0 and after < 0 and not may_be_negative(account):
            raise Overdrawn(account, after)


def same_move(one: Entry, other: Entry) -> bool:
    """Whether two entries of one key are the same; when it was posted may differ."""
    return (one.source, one.target, one.amount) == (other.source, other.target, other.amount)


@dataclass(frozen=True, kw_only=True)
class KeptTab:
    """A sandbox's tab as it is kept: what is looked for, and the whole of it as `document`."""

    sandbox_id: SandboxId
    account_id: AccountId
    key_id: KeyId
    unit: Unit
    running: bool
    """It takes a place of the account: it is neither paused nor ended."""
    closed: bool
    charged: int
    held: int
    document: Mapping[str, object]
