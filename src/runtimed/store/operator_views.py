"""What the operator sees of accounts and keys: names, terms, balances, limits. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import or_, select

from runtimed.core import ledger
from runtimed.core.errors import NotFound
from runtimed.core.ids import AccountId, KeyId
from runtimed.store.books import AccountTerms, Aside, held_of
from runtimed.store.database import Database
from runtimed.store.money_schema import account_terms, key_limits, ledger_balances
from runtimed.store.schema import accounts


@dataclass(frozen=True, kw_only=True)
class AccountView:
    """One account with its money."""

    id: AccountId
    name: str
    created_at_s: float
    terms: AccountTerms
    credit: int
    """Microdollars that are not held."""
    owed: int
    """What it used and has not paid; what is held is not among it."""
    held: int
    """For what its sandboxes may still use."""
    trial_left_ms: int | None
    """None before its first sandbox."""


class OperatorViews:
    """Reads across accounts, which no key ever may."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def accounts(self) -> list[AccountView]:
        """All, oldest first."""
        async with self._database.reading() as db:
            rows = list((await db.execute(select(accounts).order_by(accounts.c.created_at_s))).mappings())
            terms = {row["account_id"]: row for row in (await db.execute(select(account_terms))).mappings()}
            kept = (await db.execute(select(ledger_balances))).mappings()
            balances = {row["account"]: int(row["amount"]) for row in kept}
            held = await held_of(db)
        views = []
        for row in rows:
            account_id = AccountId(row["id"])
            agreed = terms.get(account_id)
            aside = held.get(account_id, Aside())
            views.append(
                AccountView(
                    id=account_id,
                    name=row["name"],
                    created_at_s=row["created_at_s"],
                    terms=AccountTerms(
                        prepaid=agreed["prepaid"] if agreed else False,
                        sandboxes_max=agreed["sandboxes_max"] if agreed else None,
                    ),
                    credit=balances.get(ledger.credit(account_id), 0),
                    owed=-balances.get(ledger.owed(account_id), 0) - aside.of_owed,
                    held=aside.of_credit + aside.of_owed,
                    trial_left_ms=balances.get(ledger.trial(account_id)),
                )
            )
        return views

    async def find(self, reference: str) -> AccountId:
        """An account by its id or name. Raises NotFound for none, and for a name that several have."""
        wanted = select(accounts.c.id).where(or_(accounts.c.id == reference, accounts.c.name == reference))
        async with self._database.reading() as db:
            found = list((await db.execute(wanted)).scalars())
        if len(found) != 1:
            what = "several accounts are called" if found else "there is no account"
            raise NotFound(f"{what} {reference!r}", hint="runtime admin account ls lists them with their ids")
        return AccountId(found[0])

    async def day_limits(self) -> dict[KeyId, int]:
        """Microdollars that keys with a limit may spend in 24 hours."""
        async with self._database.reading() as db:
            rows = (await db.execute(select(key_limits))).mappings()
            return {KeyId(row["key_id"]): int(row["daily_micros"]) for row in rows}
