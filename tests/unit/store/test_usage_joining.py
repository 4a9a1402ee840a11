"""Old use is joined by the hour: sums, charges and the numbers of the samples stay as they were."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, insert, select

from runtimed.core.clock import ManualClock
from runtimed.core.ids import AccountId, KeyId, SandboxId
from runtimed.core.usage import UsageRun, Used
from runtimed.store.accounts import Accounts
from runtimed.store.books import Books, UsageQuery
from runtimed.store.database import Database, open_database, sqlite_url
from runtimed.store.money_schema import request_counts, usage
from runtimed.store.usage_joining import UsageJoining, join_hours
from runtimed.store.usage_reports import UsageReports

HOUR_S, DAY_S = 3600, 86_400
KEY = KeyId("key")


def run(seq: int, *, at_s: float, sandbox: str = "one", credited: bool = False, account: str = "acc") -> UsageRun:
    """Six samples a minute, as the meter counts them."""
    return UsageRun(
        sandbox_id=SandboxId(sandbox),
        first_seq=seq * 6 - 5,
        last_seq=seq * 6,
        account_id=AccountId(account),
        key_id=KEY,
        at_s=at_s,
        used=Used(cpu_us=seq, running_ms=60_000, outbound_bytes=7),
        mib_ms=60_000 * 4096,
        credited=credited,
        micros=520 + seq % 2,
        sample_hashes=tuple(f"{seq:060x}{place:04x}" for place in range(6)),
    )


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await open_database(sqlite_url(tmp_path / "runtime.db"))
    yield database
    await database.close()


@given(st.lists(st.tuples(st.sampled_from(["one", "two"]), st.booleans(), st.integers(0, 3)), max_size=60))
def test_joined_runs_sum_to_what_they_were_and_share_no_sample(made: list[tuple[str, bool, int]]) -> None:
    runs = [run(n, at_s=h * HOUR_S, sandbox=s, credited=c) for n, (s, c, h) in enumerate(sorted(made), start=1)]
    runs.sort(key=lambda one: (one.sandbox_id, one.last_seq))
    joined = join_hours(runs)

    assert sum(one.micros for one in joined) == sum(one.micros for one in runs)
    assert sum(one.used.cpu_us for one in joined) == sum(one.used.cpu_us for one in runs)
    assert sum(one.mib_ms for one in joined if one.credited) == sum(one.mib_ms for one in runs if one.credited)
    for before, after in pairwise(joined):
        assert before.sandbox_id != after.sandbox_id or before.last_seq < after.first_seq


async def test_reports_are_the_same_after_old_use_was_joined(database: Database) -> None:
    clock = ManualClock()
    account = await Accounts(database, clock).first_account()
    now_s = clock.now_s() // HOUR_S * HOUR_S
    books, reports, joining = Books(database), UsageReports(database), UsageJoining(database)
    old_s = now_s - 40 * DAY_S
    runs = [
        run(n, at_s=at_s + n % 60 * 60, sandbox=sandbox, credited=n == 70, account=account)
        for sandbox in ("one", "two")
        for n, at_s in ((n, old_s + n // 60 * HOUR_S if n < 120 else now_s - HOUR_S) for n in range(1, 180))
    ]
    async with books.open(account) as opened:
        await opened.add_usage(runs)
    windows = [(0.0, now_s), (old_s + HOUR_S, now_s), (old_s, old_s + HOUR_S), (now_s - DAY_S, now_s)]
    queries = [UsageQuery(account_id=account, since_s=a, until_s=b) for a, b in windows]
    before = [await reports.shown(query) for query in queries]
    fewer = await joining.join(before_s=now_s - 35 * DAY_S)
    again = await joining.join(before_s=now_s - 35 * DAY_S)
    after = [await reports.shown(query) for query in queries]

    assert [(w.used, w.mib_ms, w.micros, w.sandboxes) for w in after] == [
        (w.used, w.mib_ms, w.micros, w.sandboxes) for w in before
    ]
    async with database.reading() as db:
        rows = (await db.execute(select(func.count()).select_from(usage))).scalar_one()
    assert (fewer, again) == (len(runs) - rows, 0)
    # For each sandbox: an hour, an hour in three parts around what was credited, and the newest hour as it was.
    assert rows == 2 * (1 + 3 + 60)


async def test_counts_of_requests_go_when_nobody_can_ask_for_them(database: Database) -> None:
    now_s = 1000.0 * DAY_S
    row = {"account_id": "acc", "operation": "GET /v1/me", "answered": 1, "failed": 0}
    async with database.writing() as db:
        hours = [int((now_s - days * DAY_S) // HOUR_S) for days in (0, 90, 101)]
        await db.execute(insert(request_counts), [{**row, "hour": hour} for hour in hours])
    await UsageJoining(database).forget_requests(now_s=now_s)

    async with database.reading() as db:
        left = (await db.execute(select(request_counts.c.hour).order_by(request_counts.c.hour))).scalars().all()
    assert list(left) == sorted(hours[:2])
