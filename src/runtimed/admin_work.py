"""What the operator does with accounts, keys, credit and limits. Works beside a running service, on one database.

Each change is in the audit chain as the operator's.
"""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from runtimed.billing import limits
from runtimed.billing.limits import DAY_S
from runtimed.core import ledger
from runtimed.core.audit import AuditEvent, Detail
from runtimed.core.clock import Clock, SystemClock, iso
from runtimed.core.errors import Conflict, InvalidRequest
from runtimed.core.ids import AccountId, KeyId, new_id
from runtimed.core.ledger import Entry, KeyPostedOtherwise, LedgerAccount, Overdrawn
from runtimed.core.money import Micros, format_usd, parse_usd
from runtimed.open_store import open_store
from runtimed.settings import Settings
from runtimed.state_folder import StateFolder
from runtimed.store.accounts import Accounts, ApiKey
from runtimed.store.audit import AuditStore
from runtimed.store.books import AccountTerms, Books
from runtimed.store.database import Database
from runtimed.store.operator_views import AccountView, OperatorViews

NAME_MAX_CHARS = 100
SANDBOXES_MAX = 1_000_000

Shown = dict[str, object]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class KeyWish:
    """A key to be made."""

    name: str
    account: str | None = None
    """Id or name; None is the first account."""
    read_only: bool = False
    account_wide: bool = False
    """It reaches all of its account; else only what it made itself."""
    day_limit_usd: str | None = None


class Operator:
    """Everything that no key may do."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._clock = clock
        self._accounts = Accounts(database, clock)
        self._books = Books(database)
        self._views = OperatorViews(database)
        self._audit = AuditStore(database)

    async def create_account(self, name: str, *, prepaid: bool, sandboxes_max: int | None) -> Shown:
        """Raises AlreadyExists, InvalidRequest."""
        if not 0 < len(name) <= NAME_MAX_CHARS or not name.isprintable():
            raise _wrong("name", f"must be 1 to {NAME_MAX_CHARS} printable characters")
        terms = AccountTerms(prepaid=prepaid, sandboxes_max=_places(sandboxes_max))
        await self._accounts.first_account()  # the service's own stays the first one
        account_id = await self._accounts.create_account(name)
        async with self._books.open(account_id) as books:
            await books.set_terms(terms)
        await self._note(account_id, "account.create", account_id, prepaid=prepaid, sandboxesMax=sandboxes_max)
        return _account_shown(await self._view(account_id))

    async def set_account(self, reference: str, *, prepaid: bool | None, sandboxes_max: int | None) -> Shown:
        """Change what is given; `sandboxes_max` 0 lifts the limit. What is held stays as it was agreed."""
        account_id = await self._views.find(reference)
        async with self._books.open(account_id) as books:
            terms = await books.terms()
            if prepaid is not None:
                terms = replace(terms, prepaid=prepaid)
            if sandboxes_max is not None:
                terms = replace(terms, sandboxes_max=_places(sandboxes_max) or None)
            await books.set_terms(terms)
        await self._note(account_id, "account.set", account_id, prepaid=terms.prepaid, sandboxesMax=terms.sandboxes_max)
        return _account_shown(await self._view(account_id))

    async def accounts(self) -> list[Shown]:
        return [_account_shown(view) for view in await self._views.accounts()]

    async def create_key(self, wish: KeyWish) -> Shown:
        """The key with its text, shown this once."""
        day_limit = None if wish.day_limit_usd is None else parse_usd(wish.day_limit_usd, field="daily-limit")
        account_id = await self._account(wish.account)
        made, text = await self._accounts.create_key(
            account_id,
            name=wish.name,
            kind="read_only" if wish.read_only else "full",
            account_wide=wish.account_wide,
        )
        async with self._books.open(account_id) as books:
            await books.set_day_limit(made.id, day_limit)
        await self._note(
            account_id, "key.create", made.id, kind=made.kind, accountWide=made.account_wide, dailyMicros=day_limit
        )
        return _key_shown(made, day_limit) | {"key": text}

    async def keys(self) -> list[Shown]:
        day_limits = await self._views.day_limits()
        return [_key_shown(key, day_limits.get(key.id)) for key in await self._accounts.list_keys()]

    async def revoke_key(self, key_id: str) -> None:
        """Twice is once. Raises NotFound."""
        account_id = await self._books.key_account(KeyId(key_id))
        await self._accounts.revoke_key(key_id)
        await self._note(account_id, "key.revoke", key_id)

    async def limit_key(self, key_id: str, usd: str | None) -> Shown:
        """Set the most that a key may spend in any 24 hours; None lifts it.

        Raises:
            InvalidRequest: the limit is below what is spent and held under it already.
        """
        micros = None if usd is None else parse_usd(usd, field="daily-limit")
        key = KeyId(key_id)
        account_id = await self._books.key_account(key)
        async with self._books.open(account_id) as books:
            if micros is not None:
                settled = await books.settled(key, since_s=self._clock.now_s() - DAY_S)
                limits.check_new_limit(micros, in_use=settled + await books.held(key), field="daily-limit")
            await books.set_day_limit(key, micros)
        await self._note(account_id, "key.limit", key_id, dailyMicros=micros)
        return {"id": key_id, "dailyLimitMicros": micros}

    async def add_credit(self, reference: str, usd: str, *, mark: str | None) -> Shown:
        """Give credit. With a `mark` (the number of an invoice, say) the same again is done once.

        Raises:
            InvalidRequest: not an amount, or 0. Conflict: the mark was used with another amount.
        """
        account_id, amount = await self._views.find(reference), _amount(usd)
        await self._move(account_id, ledger.GRANTED, ledger.credit(account_id), amount, mark)
        await self._note(account_id, "credit.add", account_id, micros=amount)
        return await self._credit_shown(account_id)

    async def take_credit(self, reference: str, usd: str, *, mark: str | None) -> Shown:
        """Take credit back that is not held. Raises Conflict where there is less."""
        account_id, amount = await self._views.find(reference), _amount(usd)
        await self._move(account_id, ledger.credit(account_id), ledger.GRANTED, amount, mark)
        await self._note(account_id, "credit.take", account_id, micros=amount)
        return await self._credit_shown(account_id)

    async def check_books(self) -> Shown:
        """Whether every balance is the sum of its entries, and every audit line is as it was written."""
        ledger_problems = await self._books.problems()
        audit_problems = [f"line {p.number}: {p.message}" for p in await self._audit.verify()]
        return {
            "clean": not ledger_problems and not audit_problems,
            "ledger": ledger_problems,
            "audit": audit_problems,
            "auditLines": await self._audit.length(),
        }

    async def _move(
        self, account_id: AccountId, source: LedgerAccount, target: LedgerAccount, amount: Micros, mark: str | None
    ) -> None:
        entry = Entry(
            key=f"{account_id}/credit/{mark or new_id()}",
            at_s=self._clock.now_s(),
            source=source,
            target=target,
            amount=amount,
            reason="grant",
            account_id=account_id,
        )
        try:
            async with self._books.open(account_id) as books:
                await books.post([entry])
        except Overdrawn as error:
            has = format_usd(error.balance + amount)
            raise Conflict(f"the account has {has} that is not held", hint="take less, or end its sandboxes") from error
        except KeyPostedOtherwise as error:
            raise Conflict(f"{mark!r} was posted before with another amount", hint="use another --mark") from error

    async def _account(self, reference: str | None) -> AccountId:
        return await self._accounts.first_account() if reference is None else await self._views.find(reference)

    async def _view(self, account_id: AccountId) -> AccountView:
        return next(view for view in await self._views.accounts() if view.id == account_id)

    async def _credit_shown(self, account_id: AccountId) -> Shown:
        view = await self._view(account_id)
        return {"id": view.id, "name": view.name, "creditMicros": view.credit, "prepaid": view.terms.prepaid}

    async def _note(self, account_id: AccountId, action: str, target: str, **details: Detail) -> None:
        event = AuditEvent(
            at_ms=int(self._clock.now_s() * 1000),
            account_id=account_id,
            action=action,
            target=target,
            actor=f"operator:{getpass.getuser()}"[:64],
            address="local",
            details=details,
        )
        await self._audit.append([event])


def with_operator(settings: Settings, work: Callable[[Operator], Awaitable[T]]) -> T:
    """Do the work on the settings' database. Raises CommandError where that cannot be opened."""

    async def whole() -> T:
        database = await open_store(settings)
        try:
            return await work(Operator(database, SystemClock()))
        finally:
            await database.close()

    StateFolder(settings.state_dir).make()
    return asyncio.run(whole())


def _amount(usd: str) -> Micros:
    amount = parse_usd(usd, field="amount")
    if amount == 0:
        raise _wrong("amount", "must be above 0")
    return amount


def _places(sandboxes_max: int | None) -> int | None:
    if sandboxes_max is not None and not 0 <= sandboxes_max <= SANDBOXES_MAX:
        raise _wrong("sandboxes", f"must be from 0 to {SANDBOXES_MAX}")
    return sandboxes_max


def _wrong(field: str, why: str) -> InvalidRequest:
    return InvalidRequest([{"field": field, "message": why}])


def _account_shown(view: AccountView) -> Shown:
    return {
        "id": view.id,
        "name": view.name,
        "createdAt": iso(view.created_at_s),
        "prepaid": view.terms.prepaid,
        "sandboxesMax": view.terms.sandboxes_max,
        "creditMicros": view.credit,
        "owedMicros": view.owed,
        "heldMicros": view.held,
        "trialLeftSeconds": None if view.trial_left_ms is None else view.trial_left_ms // 1000,
    }


def _key_shown(key: ApiKey, day_limit: int | None) -> Shown:
    return {
        "id": key.id,
        "accountId": key.account_id,
        "name": key.name,
        "kind": key.kind,
        "accountWide": key.account_wide,
        "dailyLimitMicros": day_limit,
        "createdAt": iso(key.created_at_s),
        "revokedAt": iso(key.revoked_at_s),
    }
