"""The egress_records table: verdicts in, pages out, and what is past its time removed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping, and_, delete, func, insert, or_, select
from sqlalchemy.exc import DataError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from runtimed.core.egress import EgressRecord, Happened
from runtimed.core.ids import SandboxId
from runtimed.core.lifecycle import State
from runtimed.core.sandbox import DAY_S
from runtimed.store.database import Database
from runtimed.store.schema import egress_records, sandboxes

KEPT_PER_SANDBOX = 10_000


class NotTaken(Exception):
    """The database did not take a write; says why, without the write's values."""

    def __init__(self, failure: Exception, *, later: bool) -> None:
        super().__init__(str(getattr(failure, "orig", None) or failure))
        self.later = later
        """Whether it may take the same write later."""


class EgressRecordStore:
    """Rows of verdicts."""

    def __init__(self, database: Database, *, kept_per_sandbox: int = KEPT_PER_SANDBOX) -> None:
        self._database = database
        self._kept = kept_per_sandbox

    async def add(self, records: Sequence[EgressRecord]) -> None:
        """Keep these, which follow each other, in one transaction. Idempotent. Raises NotTaken."""
        spans: dict[SandboxId, tuple[int, int]] = {}
        for record in records:
            first, _ = spans.get(record.sandbox_id, (record.sequence, 0))
            spans[record.sandbox_id] = first, record.sequence
        async with self._writing() as db:
            for sandbox_id, (first, last) in spans.items():
                # A write whose answer was lost is repeated.
                repeated = egress_records.c.sequence.between(first, last)
                await db.execute(delete(egress_records).where(egress_records.c.sandbox_id == sandbox_id, repeated))
            if records:
                await db.execute(insert(egress_records), [_row(record) for record in records])

    async def page(self, sandbox_id: SandboxId, *, after: int, limit: int) -> list[EgressRecord]:
        """Those with a higher sequence, oldest first; of more than `limit`, the oldest."""
        query = (
            select(egress_records)
            .where(egress_records.c.sandbox_id == sandbox_id, egress_records.c.sequence > after)
            .order_by(egress_records.c.sequence)
            .limit(limit)
        )
        async with self._database.reading() as db:
            return [_record(row) for row in (await db.execute(query)).mappings()]

    async def newest(self) -> dict[SandboxId, int]:
        """The newest sequence of every sandbox that can have more; 0 where nothing is kept."""
        of_each = (
            select(func.max(egress_records.c.sequence))
            .where(egress_records.c.sandbox_id == sandboxes.c.id)
            .correlate(sandboxes)
            .scalar_subquery()
        )
        can_run = or_(sandboxes.c.state != State.STOPPED.value, sandboxes.c.disk_kept)
        async with self._database.reading() as db:
            rows = (await db.execute(select(sandboxes.c.id, of_each.label("newest")).where(can_run))).all()
        return {SandboxId(sandbox_id): int(newest or 0) for sandbox_id, newest in rows}

    async def trim(self, of: Iterable[SandboxId]) -> None:
        """Remove all but the newest of each of these sandboxes. Raises NotTaken."""
        for sandbox_id in of:
            mine = egress_records.c.sandbox_id == sandbox_id
            newest_first = select(egress_records.c.sequence).where(mine).order_by(egress_records.c.sequence.desc())
            too_old = newest_first.offset(self._kept).limit(1).scalar_subquery()
            async with self._writing() as db:
                await db.execute(delete(egress_records).where(mine, egress_records.c.sequence <= too_old))

    async def purge(self, *, now_s: float) -> None:
        """Remove what belongs to sandboxes that were deleted, or that ended longer ago than they were to be kept.

        Raises:
            NotTaken: some are still there.
        """
        over = and_(
            sandboxes.c.state == State.STOPPED.value,
            sandboxes.c.disk_kept.is_(False),
            sandboxes.c.ended_at_s + sandboxes.c.retention_days * DAY_S <= now_s,
        )
        gone = select(sandboxes.c.id).where(or_(sandboxes.c.deleted_at_s.is_not(None), over))
        # Looked for without the lock of writers, since there is nearly always nothing to remove.
        of_gone = select(egress_records.c.sandbox_id).where(egress_records.c.sandbox_id.in_(gone)).distinct()
        with _failures_told():
            async with self._database.reading() as db:
                found = list((await db.execute(of_gone)).scalars())
        for sandbox_id in found:
            async with self._writing() as db:
                await db.execute(delete(egress_records).where(egress_records.c.sandbox_id == sandbox_id))

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[AsyncConnection]:
        with _failures_told():
            async with self._database.writing() as db:
                yield db


@contextlib.contextmanager
def _failures_told() -> Iterator[None]:
    try:
        yield
    except (DataError, IntegrityError, ProgrammingError) as refused:
        raise NotTaken(refused, later=False) from refused
    except (SQLAlchemyError, OSError) as failure:
        raise NotTaken(failure, later=True) from failure


def _row(record: EgressRecord) -> dict[str, Any]:
    return {
        "sandbox_id": record.sandbox_id,
        "sequence": record.sequence,
        "at_s": record.at_s,
        "happened": asdict(record.happened),
    }


def _record(row: RowMapping) -> EgressRecord:
    happened = row["happened"]
    return EgressRecord(
        sequence=row["sequence"],
        at_s=row["at_s"],
        sandbox_id=SandboxId(row["sandbox_id"]),
        happened=Happened(**{**happened, "secrets": tuple(happened["secrets"])}),
    )
