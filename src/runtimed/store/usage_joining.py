"""Joins what was metered long ago into one row an hour: every sum, and the proof of every sample, stays.

The ledger and the audit log are never touched by this, nor is what was charged: only detail within an hour goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlalchemy import and_, bindparam, delete, insert, select

from runtimed.core.usage import UsageRun
from runtimed.store.audit import HOUR_S
from runtimed.store.books import usage_row, usage_run
from runtimed.store.database import Database
from runtimed.store.money_schema import request_counts, usage

DAY_S = 86_400
JOINED_AT_ONCE = 5000
"""Rows in one transaction: other writers wait for a part of a second at most."""
REQUESTS_KEPT_S = 100 * DAY_S
"""Counts of requests are asked for 90 days back and no further."""


def join_hours(runs: Iterable[UsageRun]) -> list[UsageRun]:
    """Neighbours of one sandbox and hour as one run, charged and credited ones apart. Pure.

    `runs` come by sandbox and number. The hash of a joined run is the SHA-256 of its samples' hashes, one a line.
    """
    groups: list[list[UsageRun]] = []
    for run in runs:
        if groups and _go_together(groups[-1][-1], run):
            groups[-1].append(run)
        else:
            groups.append([run])
    return [_joined(group) for group in groups]


class UsageJoining:
    """The joiner of the usage table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def join(self, *, before_s: float) -> int:
        """Join every hour that ended before a moment. Answers how many rows there are less. Idempotent."""
        until_s = before_s // HOUR_S * HOUR_S
        fewer = 0
        while (done := await self._some(until_s)) is not None:
            fewer += done
        return fewer

    async def forget_requests(self, *, now_s: float) -> None:
        """Drop counts of requests that nobody can ask for any more. Idempotent."""
        async with self._database.writing() as db:
            await db.execute(delete(request_counts).where(request_counts.c.hour < (now_s - REQUESTS_KEPT_S) // HOUR_S))

    async def _some(self, until_s: float) -> int | None:
        """The rows of the oldest hour, or a part of them; None when there is none left."""
        todo = and_(usage.c.joined.is_(False), usage.c.at_s < until_s)
        async with self._database.writing() as db:
            first_s = (await db.execute(select(usage.c.at_s).where(todo).order_by(usage.c.at_s).limit(1))).scalar()
            if first_s is None:
                return None
            hour_ends_s = (first_s // HOUR_S + 1) * HOUR_S
            wanted = select(usage).where(usage.c.joined.is_(False), usage.c.at_s < hour_ends_s)
            wanted = wanted.order_by(usage.c.sandbox_id, usage.c.last_seq).limit(JOINED_AT_ONCE)
            runs = [usage_run(row) for row in (await db.execute(wanted)).mappings()]
            whole = join_hours(runs)
            one = delete(usage).where(usage.c.sandbox_id == bindparam("of"), usage.c.last_seq == bindparam("last"))
            await db.execute(one, [{"of": run.sandbox_id, "last": run.last_seq} for run in runs])
            await db.execute(insert(usage), [usage_row(run) | {"joined": True} for run in whole])
        return len(runs) - len(whole)


def _go_together(before: UsageRun, run: UsageRun) -> bool:
    return (before.sandbox_id, before.credited, before.at_s // HOUR_S, before.key_id, before.account_id) == (
        run.sandbox_id,
        run.credited,
        run.at_s // HOUR_S,
        run.key_id,
        run.account_id,
    )


def _joined(group: Sequence[UsageRun]) -> UsageRun:
    first, used = group[0], group[0].used
    for run in group[1:]:
        used = used + run.used
    proof = hashlib.sha256("\n".join(h for run in group for h in run.sample_hashes).encode()).hexdigest()
    return replace(
        group[-1],
        first_seq=first.first_seq,
        at_s=max(run.at_s for run in group),
        used=used,
        mib_ms=sum(run.mib_ms for run in group),
        micros=sum(run.micros for run in group),
        sample_hashes=(proof,),
    )
