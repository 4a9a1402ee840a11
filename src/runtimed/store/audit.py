"""The audit chain and the counts of requests in SQL. Lines are appended, and never changed or removed here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import RowMapping, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from runtimed.core.audit import AuditEvent, AuditLine, ChainHead, Problem, follow, head_of, verify
from runtimed.core.ids import AccountId
from runtimed.store.database import Database
from runtimed.store.money_schema import audit_head, audit_lines, request_counts

HOUR_S = 3600
_READ_AT_ONCE = 2000
"""Lines that a check of the chain holds in memory."""


@dataclass(frozen=True, kw_only=True)
class AuditQuery:
    """Which lines are wanted, newest first."""

    account_id: AccountId
    actor: str | None = None
    action: str | None = None
    before: int | None = None
    """Lines with a smaller number."""
    limit: int = 100


@dataclass(frozen=True, kw_only=True)
class OperationCount:
    """How often one route was asked for in a time."""

    operation: str
    answered: int
    failed: int


class AuditStore:
    """One chain for the whole service."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, events: Sequence[AuditEvent]) -> list[AuditLine]:
        """Append in this order, in one transaction, also beside another process that appends."""
        if not events:
            return []
        async with self._database.writing() as db:
            head = await _locked_head(db)
            lines = []
            for event in events:
                lines.append(follow(head, event))
                head = head_of(lines[-1])
            await db.execute(insert(audit_lines), [_row(line) for line in lines])
            await db.execute(update(audit_head).values(number=head.number, hash=head.hash))
        return lines

    async def page(self, wanted: AuditQuery) -> list[AuditLine]:
        """Newest first."""
        query = select(audit_lines).where(audit_lines.c.account_id == wanted.account_id)
        if wanted.actor is not None:
            query = query.where(audit_lines.c.actor == wanted.actor)
        if wanted.action is not None:
            one = audit_lines.c.action == wanted.action
            group = audit_lines.c.action.startswith(wanted.action, autoescape=True)
            query = query.where(group if wanted.action.endswith(".") else one)
        if wanted.before is not None:
            query = query.where(audit_lines.c.number < wanted.before)
        async with self._database.reading() as db:
            rows = (await db.execute(query.order_by(audit_lines.c.number.desc()).limit(wanted.limit))).mappings()
            return [_line(row) for row in rows]

    async def verify(self) -> list[Problem]:
        """Every place where the chain is not what was written."""
        async with self._database.reading() as db:
            row = (await db.execute(select(audit_head))).mappings().first()
        head = ChainHead(number=row["number"], hash=row["hash"]) if row else ChainHead()
        problems, last = list[Problem](), ChainHead()
        async for lines in self._all():
            problems += verify(lines, after=last)
            last = head_of(lines[-1])
        return problems + verify([], after=last, head=head)

    async def length(self) -> int:
        async with self._database.reading() as db:
            return int((await db.execute(select(func.count()).select_from(audit_lines))).scalar() or 0)

    async def _all(self) -> AsyncIterator[list[AuditLine]]:
        after = -1
        while True:
            query = select(audit_lines).where(audit_lines.c.number > after).order_by(audit_lines.c.number)
            async with self._database.reading() as db:
                lines = [_line(row) for row in (await db.execute(query.limit(_READ_AT_ONCE))).mappings()]
            if not lines:
                return
            yield lines
            after = lines[-1].number


class RequestCounts:
    """How often each route was asked for, by the hour."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, counts: Mapping[tuple[AccountId, int, str], tuple[int, int]]) -> None:
        """Add (answered, failed) to each account's hour and operation."""
        if not counts:
            return
        async with self._database.writing() as db:
            for (account_id, hour, operation), (answered, failed) in sorted(counts.items()):
                place = {"account_id": account_id, "hour": hour, "operation": operation}
                moved = await db.execute(
                    update(request_counts)
                    .where(*(request_counts.c[name] == value for name, value in place.items()))
                    .values(answered=request_counts.c.answered + answered, failed=request_counts.c.failed + failed)
                )
                if not moved.rowcount:
                    await db.execute(insert(request_counts).values(**place, answered=answered, failed=failed))

    async def shown(self, account_id: AccountId, *, since_s: float) -> list[OperationCount]:
        """Of an account since an hour, most asked for first."""
        answered = func.sum(request_counts.c.answered)
        query = (
            select(
                request_counts.c.operation,
                answered.label("answered"),
                func.sum(request_counts.c.failed).label("failed"),
            )
            .where(request_counts.c.account_id == account_id, request_counts.c.hour >= int(since_s // HOUR_S))
            .group_by(request_counts.c.operation)
            .order_by(answered.desc(), request_counts.c.operation)
        )
        async with self._database.reading() as db:
            rows = (await db.execute(query)).mappings()
            return [
                OperationCount(operation=row["operation"], answered=int(row["answered"]), failed=int(row["failed"]))
                for row in rows
            ]


async def _locked_head(db: AsyncConnection) -> ChainHead:
    """The head, which nobody else can follow until this transaction ends."""
    taken = update(audit_head).values(number=audit_head.c.number).returning(audit_head.c.number, audit_head.c.hash)
    row = (await db.execute(taken)).mappings().first()
    if row is None:
        await db.execute(insert(audit_head).values(only=1, **asdict(ChainHead())))
        return ChainHead()
    return ChainHead(number=row["number"], hash=row["hash"])


def _row(line: AuditLine) -> dict[str, Any]:
    event = asdict(line.event)
    return {"number": line.number, "previous": line.previous, "hash": line.hash, **event}


def _line(row: RowMapping) -> AuditLine:
    event = AuditEvent(**{name: row[name] for name in AuditEvent.__dataclass_fields__})
    return AuditLine(number=row["number"], event=event, previous=row["previous"], hash=row["hash"])
