"""Makes the entries that put money aside for a sandbox, spend it, and give the rest back."""

from __future__ import annotations

from dataclasses import dataclass

from runtimed.billing.rating import Funding
from runtimed.core import ledger
from runtimed.core.ids import AccountId, KeyId, SandboxId
from runtimed.core.ledger import Entry, LedgerAccount, Reason


@dataclass(frozen=True, kw_only=True)
class Payer:
    """Who pays for one sandbox, and how."""

    account_id: AccountId
    key_id: KeyId
    sandbox_id: SandboxId
    funding: Funding = "credit"
    prepaid: bool = True
    """False: the account pays afterwards, and may owe."""

    @property
    def purse(self) -> LedgerAccount:
        """Where holds are taken from and come back to."""
        if self.funding == "trial":
            return ledger.trial(self.account_id)
        return ledger.credit(self.account_id) if self.prepaid else ledger.owed(self.account_id)

    @property
    def held(self) -> LedgerAccount:
        if self.funding == "trial":
            return ledger.trial_held(self.sandbox_id)
        return ledger.held(self.sandbox_id)

    @property
    def earned(self) -> LedgerAccount:
        return ledger.TRIAL_USED if self.funding == "trial" else ledger.REVENUE


@dataclass(frozen=True, kw_only=True)
class Post:
    """When something is posted, and the name that makes it unique within its sandbox."""

    name: str
    at_s: float


def hold_changed(payer: Payer, post: Post, *, before: int, after: int) -> list[Entry]:
    """Take more aside, or give back what is not needed. Nothing where both are the same."""
    if after > before:
        return [_entry(payer, post, "hold", after - before)]
    if after < before:
        return [_entry(payer, post, "release", before - after)]
    return []


def charged(payer: Payer, post: Post, amount: int) -> list[Entry]:
    """Spend a part of what is held."""
    return [_entry(payer, post, "charge", amount)] if amount else []


def written_off(payer: Payer, post: Post, amount: int) -> list[Entry]:
    """The operator pays for what the customer could not use."""
    return [_entry(payer, post, "credit", amount)] if amount else []


def _entry(payer: Payer, post: Post, reason: Reason, amount: int) -> Entry:
    source, target = {
        "hold": (payer.purse, payer.held),
        "release": (payer.held, payer.purse),
        "charge": (payer.held, payer.earned),
        "credit": (ledger.WRITTEN_OFF, ledger.REVENUE),
    }[reason]
    return Entry(
        key=f"{payer.sandbox_id}/{reason}/{post.name}",
        at_s=post.at_s,
        source=source,
        target=target,
        amount=amount,
        reason=reason,
        account_id=payer.account_id,
        key_id=payer.key_id,
        sandbox_id=payer.sandbox_id,
    )
