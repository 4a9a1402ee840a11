"""The books in SQL: ledger, tabs, limits, what was metered. Holds the rules of the ledger, decides no price."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import RowMapping, Select, and_, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runtimed.core import ledger
from runtimed.core.errors import NotFound
from runtimed.core.ids import AccountId, KeyId, SandboxId
from runtimed.core.ledger import (
    REVENUE,
    Entry,
    KeptTab,
    KeyPostedOtherwise,
    LedgerAccount,
    Overdrawn,
    may_be_negative,
    moves,
    same_move,
)
from runtimed.core.money import Micros
from runtimed.core.usage import UsageRun, Used
from runtimed.store.database import Database
from runtimed.store.money_schema import (
    account_terms,
    key_limits,
    ledger_balances,
    ledger_entries,
    metering,
    tabs,
    usage,
)
from runtimed.store.schema import accounts, keys


@dataclass(frozen=True, kw_only=True)
class AccountTerms:
    """How an account pays, and how much it may run."""

    prepaid: bool
    sandboxes_max: int | None


@dataclass(frozen=True, kw_only=True)
class KeyStanding:
    """Everything that a limit is checked against, read at once."""

    terms: AccountTerms
    credit: int
    trial_ms: int | None
    """None for an account that was never given its trial."""
    day_limit: Micros | None
    day_settled: int
    day_held: int
    running: int


class OpenBooks:
    """The books of one account inside one transaction. Nobody else changes them until it ends."""

    def __init__(self, db: AsyncConnection, account_id: AccountId) -> None:
        self._db = db
        self.account_id = account_id

    async def terms(self) -> AccountTerms:
        """An account without terms of its own pays afterwards, without a limit on its sandboxes."""
        found = await self._db.execute(select(account_terms).where(account_terms.c.account_id == self.account_id))
        row = found.mappings().first()
        if row is None:
            return AccountTerms(prepaid=False, sandboxes_max=None)
        return AccountTerms(prepaid=row["prepaid"], sandboxes_max=row["sandboxes_max"])

    async def set_terms(self, terms: AccountTerms) -> None:
        await self._db.execute(delete(account_terms).where(account_terms.c.account_id == self.account_id))
        await self._db.execute(insert(account_terms).values(account_id=self.account_id, **asdict(terms)))

    async def balance(self, account: LedgerAccount) -> int:
        return int((await self._db.execute(_balance(account))).scalar() or 0)

    async def standing(self, key_id: KeyId, *, since_s: float) -> KeyStanding:
        """One question to the database, since every create waits for it."""
        terms = select(account_terms).where(account_terms.c.account_id == self.account_id).subquery()
        asked = {
            "prepaid": select(terms.c.prepaid),
            "sandboxes_max": select(terms.c.sandboxes_max),
            "credit": _balance(ledger.credit(self.account_id)),
            "trial_ms": _balance(ledger.trial(self.account_id)),
            "day_limit": select(key_limits.c.daily_micros).where(key_limits.c.key_id == key_id),
            "day_settled": _settled(key_id, since_s),
            "day_held": _held(key_id),
            "running": _running(self.account_id),
        }
        wanted = select(*(query.scalar_subquery().label(name) for name, query in asked.items()))
        row = (await self._db.execute(wanted)).mappings().one()
        return KeyStanding(
            terms=AccountTerms(prepaid=bool(row["prepaid"]), sandboxes_max=row["sandboxes_max"]),
            credit=int(row["credit"] or 0),
            trial_ms=None if row["trial_ms"] is None else int(row["trial_ms"]),
            day_limit=None if row["day_limit"] is None else Micros(int(row["day_limit"])),
            day_settled=int(row["day_settled"] or 0),
            day_held=int(row["day_held"] or 0),
            running=int(row["running"] or 0),
        )

    async def set_day_limit(self, key_id: KeyId, micros: Micros | None) -> None:
        await self._db.execute(delete(key_limits).where(key_limits.c.key_id == key_id))
        if micros is not None:
            await self._db.execute(insert(key_limits).values(key_id=key_id, daily_micros=micros))

    async def held_aside(self) -> Aside:
        """What is held for everything that the account runs."""
        return (await held_of(self._db, self.account_id)).get(self.account_id, Aside())

    async def settled(self, key_id: KeyId, *, since_s: float) -> int:
        """Microdollars that a key was charged after a moment."""
        return int((await self._db.execute(_settled(key_id, since_s))).scalar() or 0)

    async def held(self, key_id: KeyId) -> int:
        """Microdollars that are held now for what a key runs."""
        return int((await self._db.execute(_held(key_id))).scalar() or 0)

    async def tab(self, sandbox_id: SandboxId) -> KeptTab | None:
        found = await self._db.execute(select(tabs).where(tabs.c.sandbox_id == sandbox_id))
        row = found.mappings().first()
        return None if row is None else _tab(row)

    async def tabs(self, sandbox_ids: Iterable[SandboxId]) -> dict[SandboxId, KeptTab]:
        """Those that there are, in one question."""
        rows = (await self._db.execute(select(tabs).where(tabs.c.sandbox_id.in_(list(sandbox_ids))))).mappings()
        return {tab.sandbox_id: tab for tab in map(_tab, rows)}

    async def save(self, kept: Sequence[KeptTab], *, new: bool = False) -> None:
        """Keep tabs as they are now. Raises IntegrityError for a `new` one that is there already."""
        if kept and not new:
            await self._db.execute(_DROP_TAB, [{"of": tab.sandbox_id} for tab in kept])
        if kept:
            await self._db.execute(insert(tabs), [asdict(tab) for tab in kept])

    async def counts(self, sandbox_ids: Iterable[SandboxId]) -> dict[SandboxId, Mapping[str, object]]:
        """Where the count of these sandboxes' samples stands."""
        found = await self._db.execute(select(metering).where(metering.c.sandbox_id.in_(list(sandbox_ids))))
        return {SandboxId(row["sandbox_id"]): row["document"] for row in found.mappings()}

    async def save_counts(self, documents: Mapping[SandboxId, Mapping[str, object]]) -> None:
        if documents:
            await self._db.execute(_DROP_COUNT, [{"of": sandbox_id} for sandbox_id in documents])
            rows = [{"sandbox_id": key, "document": dict(document)} for key, document in documents.items()]
            await self._db.execute(insert(metering), rows)

    async def add_usage(self, runs: Sequence[UsageRun]) -> None:
        """Raises IntegrityError for a run whose last sample was counted already."""
        if runs:
            await self._db.execute(insert(usage), [usage_row(run) for run in runs])

    async def post(self, entries: Sequence[Entry]) -> list[Entry]:
        """Post all or nothing, answering those that were new. Idempotent by key.

        Raises:
            Overdrawn, KeyPostedOtherwise: the transaction must be given up.
        """
        new = await self._not_posted(entries)
        if new:
            await self._db.execute(insert(ledger_entries), [asdict(entry) for entry in new])
            await self._move(moves(new))
        return new

    async def _not_posted(self, entries: Sequence[Entry]) -> list[Entry]:
        if not entries:
            return []
        known: dict[str, Entry] = {}
        wanted = select(ledger_entries).where(ledger_entries.c.key.in_([entry.key for entry in entries]))
        for row in (await self._db.execute(wanted)).mappings():
            known[row["key"]] = _entry(row)
        new = []
        for entry in entries:
            if entry.key not in known:
                known[entry.key] = entry
                new.append(entry)
            elif not same_move(known[entry.key], entry):
                raise KeyPostedOtherwise(f"{entry.key} was posted before and moved something else")
        return new

    async def _move(self, changes: Mapping[LedgerAccount, int]) -> None:
        """Move balances. Those that may not be below zero belong to this account alone, which is locked, or only grow.

        Raises Overdrawn.
        """
        wanted = select(ledger_balances).where(ledger_balances.c.account.in_(list(changes)))
        known = {row["account"]: int(row["amount"]) for row in (await self._db.execute(wanted)).mappings()}
        for account, change in changes.items():
            after = known.get(account, 0) + change
            if change < 0 and after < 0 and not may_be_negative(account):
                raise Overdrawn(account, after)
        # In one order everywhere, so that two transactions never wait for each other.
        ordered = sorted(changes.items())
        if moved := [{"of": account, "by": change} for account, change in ordered if account in known]:
            await self._db.execute(_MOVE, moved)
        if fresh := [{"account": account, "amount": change} for account, change in ordered if account not in known]:
            await self._db.execute(insert(ledger_balances), fresh)


_DROP_TAB = delete(tabs).where(tabs.c.sandbox_id == bindparam("of"))
_DROP_COUNT = delete(metering).where(metering.c.sandbox_id == bindparam("of"))
_MOVE = (
    update(ledger_balances)
    .where(ledger_balances.c.account == bindparam("of"))
    .values(amount=ledger_balances.c.amount + bindparam("by"))
)


@dataclass(frozen=True, kw_only=True)
class Aside:
    """What is held for an account's sandboxes, by where it comes back to: microdollars, and trial milliseconds."""

    of_credit: int = 0
    of_owed: int = 0
    of_trial_ms: int = 0


async def held_of(db: AsyncConnection, account_id: AccountId | None = None) -> dict[AccountId, Aside]:
    """What is held of each account that has something held. How a tab pays was agreed when it was opened."""
    wanted = select(tabs.c.account_id, tabs.c.unit, tabs.c.held, tabs.c.document).where(
        tabs.c.closed.is_(False), tabs.c.held > 0
    )
    if account_id is not None:
        wanted = wanted.where(tabs.c.account_id == account_id)
    found: dict[AccountId, Aside] = {}
    for account, unit, amount, document in (await db.execute(wanted)).all():
        before = found.get(account, Aside())
        of = "of_trial_ms" if unit == "trial_ms" else "of_credit" if document["payer"]["prepaid"] else "of_owed"
        found[AccountId(account)] = replace(before, **{of: getattr(before, of) + int(amount)})
    return found


class Books:
    """Every account's books."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextlib.asynccontextmanager
    async def open(self, account_id: AccountId) -> AsyncIterator[OpenBooks]:
        """One transaction on one account: what is read in it stays true until it is written.

        Raises:
            NotFound: there is no such account.
        """
        async with self._database.writing() as db:
            # A write that changes nothing takes the lock that both databases have: SQLite's, or the account's row.
            locked = await db.execute(update(accounts).where(accounts.c.id == account_id).values(name=accounts.c.name))
            if not locked.rowcount:
                raise NotFound(f"there is no account {account_id!r}")
            yield OpenBooks(db, account_id)

    async def tabs(self, sandbox_ids: Iterable[SandboxId]) -> dict[SandboxId, KeptTab]:
        wanted = list(sandbox_ids)
        if not wanted:
            return {}
        async with self._database.reading() as db:
            rows = (await db.execute(select(tabs).where(tabs.c.sandbox_id.in_(wanted)))).mappings()
            return {tab.sandbox_id: tab for tab in map(_tab, rows)}

    async def open_tabs(self, account_id: AccountId | None = None) -> list[KeptTab]:
        wanted = select(tabs).where(tabs.c.closed.is_(False))
        if account_id is not None:
            wanted = wanted.where(tabs.c.account_id == account_id)
        async with self._database.reading() as db:
            return [_tab(row) for row in (await db.execute(wanted)).mappings()]

    async def entries(self, sandbox_id: SandboxId) -> list[Entry]:
        """A sandbox's entries, oldest first."""
        wanted = select(ledger_entries).where(ledger_entries.c.sandbox_id == sandbox_id)
        async with self._database.reading() as db:
            rows = (await db.execute(wanted.order_by(ledger_entries.c.number))).mappings()
            return [_entry(row) for row in rows]

    async def usage(self, wanted: UsageQuery) -> list[UsageRun]:
        """What was metered in a time, oldest first."""
        async with self._database.reading() as db:
            return [usage_run(row) for row in (await db.execute(_usage_query(wanted))).mappings()]

    async def problems(self) -> list[str]:
        """Balances that are not the sum of their entries, or below zero where they may not be."""
        source = select(ledger_entries.c.source, func.sum(ledger_entries.c.amount)).group_by(ledger_entries.c.source)
        target = select(ledger_entries.c.target, func.sum(ledger_entries.c.amount)).group_by(ledger_entries.c.target)
        sums: dict[str, int] = {}
        async with self._database.reading() as db:
            for sign, query in ((-1, source), (1, target)):
                for account, amount in (await db.execute(query)).all():
                    sums[account] = sums.get(account, 0) + sign * int(amount)
            kept = {row["account"]: row["amount"] for row in (await db.execute(select(ledger_balances))).mappings()}
        found = []
        for account in sorted(sums.keys() | kept.keys()):
            is_kept, is_summed = kept.get(account, 0), sums.get(account, 0)
            if is_kept != is_summed:
                found.append(f"{account} is kept as {is_kept} and its entries sum to {is_summed}")
            if is_summed < 0 and not may_be_negative(LedgerAccount(account)):
                found.append(f"{account} is below zero: {is_summed}")
        return found

    async def key_account(self, key_id: KeyId) -> AccountId:
        """Raises NotFound."""
        async with self._database.reading() as db:
            found = (await db.execute(select(keys.c.account_id).where(keys.c.id == key_id))).scalar()
        if found is None:
            raise NotFound(f"there is no key {key_id!r}")
        return AccountId(found)


@dataclass(frozen=True, kw_only=True)
class UsageQuery:
    """Which usage is wanted. Newest last; `after` continues a page."""

    account_id: AccountId
    key_id: KeyId | None = None
    """Only what this key runs."""
    since_s: float
    until_s: float
    after: tuple[float, str, int] | None = None
    """Place of the last run of the page before: second, sandbox, last sample."""
    limit: int | None = None


def _balance(account: LedgerAccount) -> Select[Any]:
    return select(ledger_balances.c.amount).where(ledger_balances.c.account == account)


def _settled(key_id: KeyId, since_s: float) -> Select[Any]:
    return select(func.sum(ledger_entries.c.amount)).where(
        ledger_entries.c.key_id == key_id,
        ledger_entries.c.at_s > since_s,
        ledger_entries.c.reason == "charge",
        ledger_entries.c.target == REVENUE,
    )


def _held(key_id: KeyId) -> Select[Any]:
    open_ones = and_(tabs.c.key_id == key_id, tabs.c.closed.is_(False), tabs.c.unit == "micros")
    return select(func.sum(tabs.c.held)).where(open_ones)


def _running(account_id: AccountId) -> Select[Any]:
    taken = and_(tabs.c.account_id == account_id, tabs.c.closed.is_(False), tabs.c.running.is_(True))
    return select(func.count()).select_from(tabs).where(taken)


def _usage_query(wanted: UsageQuery) -> Select[Any]:
    query = select(usage).where(
        usage.c.account_id == wanted.account_id, usage.c.at_s >= wanted.since_s, usage.c.at_s < wanted.until_s
    )
    if wanted.key_id is not None:
        query = query.where(usage.c.key_id == wanted.key_id)
    if wanted.after is not None:
        at_s, sandbox_id, last_seq = wanted.after
        later = and_(usage.c.sandbox_id == sandbox_id, usage.c.last_seq > last_seq)
        query = query.where(
            or_(usage.c.at_s > at_s, and_(usage.c.at_s == at_s, or_(usage.c.sandbox_id > sandbox_id, later)))
        )
    query = query.order_by(usage.c.at_s, usage.c.sandbox_id, usage.c.last_seq)
    return query if wanted.limit is None else query.limit(wanted.limit)


def _tab(row: RowMapping) -> KeptTab:
    return KeptTab(**{name: row[name] for name in KeptTab.__dataclass_fields__})


def _entry(row: RowMapping) -> Entry:
    return Entry(**{name: row[name] for name in Entry.__dataclass_fields__})


def usage_row(run: UsageRun) -> dict[str, object]:
    """A run as its row."""
    row = asdict(run)
    row |= row.pop("used")
    row["sample_hashes"] = list(run.sample_hashes)
    return row


def usage_run(row: RowMapping) -> UsageRun:
    """A row as its run."""
    used = Used(**{name: row[name] for name in Used.__dataclass_fields__})
    plain = {name: row[name] for name in UsageRun.__dataclass_fields__ if name not in ("used", "sample_hashes")}
    return UsageRun(used=used, sample_hashes=tuple(row["sample_hashes"]), **plain)
