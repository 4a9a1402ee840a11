"""Sums and pages of what was metered, for those who read it. Changes nothing."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from sqlalchemy import ColumnElement, func, select

from runtimed.core.accounting import SandboxUse, UsagePage, UsageShown
from runtimed.core.errors import InvalidRequest
from runtimed.core.ids import AccountId, SandboxId
from runtimed.core.ledger import REVENUE
from runtimed.core.usage import UsageRun, Used
from runtimed.store.books import Books, UsageQuery
from runtimed.store.database import Database
from runtimed.store.money_schema import ledger_entries, usage
from runtimed.store.schema import sandboxes

NEWEST_MAX = 100
"""Sandboxes that a report names one by one; an export has them all."""
_SUMMED = ("cpu_us", "running_ms", "paused_mb_ms", "outbound_bytes", "mib_ms", "micros")


class UsageReports:
    """Reads the usage table."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._books = Books(database)

    async def shown(self, wanted: UsageQuery) -> UsageShown:
        """Totals of a time, and the sandboxes that used something most recently. What was credited is left out."""
        within = [*_within(wanted), usage.c.credited.is_(False)]
        sums = [func.sum(usage.c[name]).label(name) for name in _SUMMED]
        of_each = (
            select(usage.c.sandbox_id, func.max(usage.c.at_s).label("last_at_s"), *sums)
            .where(*within)
            .group_by(usage.c.sandbox_id)
            .order_by(func.max(usage.c.at_s).desc())
            .limit(NEWEST_MAX)
        )
        whole = select(func.count(usage.c.sandbox_id.distinct()).label("sandboxes"), *sums).where(*within)
        async with self._database.reading() as db:
            total = (await db.execute(whole)).mappings().one()
            rows = list((await db.execute(of_each)).mappings())
            ids = [row["sandbox_id"] for row in rows]
            named = select(sandboxes.c.id, sandboxes.c.name).where(sandboxes.c.id.in_(ids))
            names = {row["id"]: row["name"] for row in (await db.execute(named)).mappings()}
        newest = tuple(
            SandboxUse(
                sandbox_id=SandboxId(row["sandbox_id"]),
                name=names.get(row["sandbox_id"]),
                used=_used(row),
                mib_ms=int(row["mib_ms"]),
                micros=int(row["micros"]),
                last_at_s=row["last_at_s"],
            )
            for row in rows
        )
        return UsageShown(
            since_s=wanted.since_s,
            until_s=wanted.until_s,
            used=_used(total),
            mib_ms=int(total["mib_ms"] or 0),
            micros=int(total["micros"] or 0),
            sandboxes=int(total["sandboxes"]),
            newest=newest,
        )

    async def page(self, wanted: UsageQuery, *, limit: int, final_through_s: float) -> UsagePage:
        """One page, oldest first."""
        found = await self._books.usage(UsageQuery(**{**vars(wanted), "limit": limit + 1}))
        shown = tuple(found[:limit])
        more = len(found) > limit
        return UsagePage(
            runs=shown, next_cursor=write_cursor(shown[-1]) if more else None, final_through_s=final_through_s
        )

    async def spent(self, account_id: AccountId, *, since_s: float) -> int:
        """Microdollars that an account was charged after a moment."""
        wanted = select(func.sum(ledger_entries.c.amount)).where(
            ledger_entries.c.account_id == account_id,
            ledger_entries.c.at_s > since_s,
            ledger_entries.c.reason == "charge",
            ledger_entries.c.target == REVENUE,
        )
        async with self._database.reading() as db:
            return int((await db.execute(wanted)).scalar() or 0)


def _within(wanted: UsageQuery) -> list[ColumnElement[bool]]:
    within: list[ColumnElement[bool]] = [
        usage.c.account_id == wanted.account_id,
        usage.c.at_s >= wanted.since_s,
        usage.c.at_s < wanted.until_s,
    ]
    if wanted.key_id is not None:
        within.append(usage.c.key_id == wanted.key_id)
    return within


def _used(row: Any) -> Used:  # noqa: ANN401 - a row of sums
    return Used(**{name: int(row[name] or 0) for name in Used.__dataclass_fields__})


def write_cursor(last: UsageRun) -> str:
    place = json.dumps([last.at_s, last.sandbox_id, last.last_seq])
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> tuple[float, str, int] | None:
    """Raises InvalidRequest for one that is not ours."""
    if cursor is None:
        return None
    try:
        at_s, sandbox_id, last_seq = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return float(at_s), str(sandbox_id), int(last_seq)
    except (ValueError, TypeError, binascii.Error) as error:
        raise InvalidRequest([{"field": "cursor", "message": "is not a cursor of this list"}]) from error
