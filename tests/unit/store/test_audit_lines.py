"""Audit lines are one chain, also when two processes write it, and a line that was touched in the database is found."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import delete, update

from runtimed.core.audit import AuditEvent
from runtimed.core.ids import AccountId
from runtimed.store.audit import AuditQuery, AuditStore, OperationCount, RequestCounts
from runtimed.store.database import Database, open_database, sqlite_url
from runtimed.store.money_schema import audit_lines

ACCOUNT = AccountId("acc")


def event(target: str, **changed: object) -> AuditEvent:
    fields: dict[str, object] = {"at_ms": 1, "account_id": ACCOUNT, "action": "sandbox.create", "actor": "key:1"}
    return AuditEvent(**{**fields, "target": target, **changed})  # type: ignore[arg-type]


async def test_lines_are_read_newest_first_in_pages(database: Database) -> None:
    audit = AuditStore(database)
    await audit.append([event(f"sbx {n}") for n in range(5)])
    await audit.append([event("other", account_id="other")])
    first = await audit.page(AuditQuery(account_id=ACCOUNT, limit=3))
    rest = await audit.page(AuditQuery(account_id=ACCOUNT, before=first[-1].number))

    assert [line.event.target for line in [*first, *rest]] == [f"sbx {n}" for n in (4, 3, 2, 1, 0)]
    assert await audit.verify() == []


async def test_lines_can_be_asked_for_by_action_and_actor(database: Database) -> None:
    audit = AuditStore(database)
    await audit.append([event("a"), event("b", action="key.revoke"), event("c", actor="operator")])

    assert [line.event.target for line in await audit.page(AuditQuery(account_id=ACCOUNT, action="key.revoke"))] == [
        "b"
    ]
    assert [line.event.target for line in await audit.page(AuditQuery(account_id=ACCOUNT, actor="operator"))] == ["c"]


async def test_two_processes_write_one_chain(database: Database, tmp_path: Path) -> None:
    other = await open_database(sqlite_url(tmp_path / "runtime.db"))
    writers = [AuditStore(database), AuditStore(other)]
    await asyncio.gather(*(writers[n % 2].append([event(f"sbx {n}")]) for n in range(20)))
    await other.close()

    assert await writers[0].length() == 20
    assert await writers[0].verify() == []


async def test_a_line_that_was_edited_or_removed_in_the_database_is_found(database: Database) -> None:
    audit = AuditStore(database)
    await audit.append([event(f"sbx {n}", details={"vcpu": 2}) for n in range(4)])
    async with database.writing() as db:
        await db.execute(update(audit_lines).where(audit_lines.c.number == 2).values(target="somebody else"))
    edited = [problem.number for problem in await audit.verify()]
    async with database.writing() as db:
        await db.execute(delete(audit_lines).where(audit_lines.c.number == 4))
    cut = [problem.message for problem in await audit.verify()]

    assert edited == [2]
    assert "1 line is missing at the end" in cut


async def test_requests_are_counted_by_the_hour(database: Database) -> None:
    counts = RequestCounts(database)
    await counts.add({(ACCOUNT, 10, "GET /v1/me"): (3, 1), (ACCOUNT, 10, "POST /v1/sandboxes"): (5, 0)})
    await counts.add({(ACCOUNT, 11, "GET /v1/me"): (4, 0), (AccountId("other"), 11, "GET /v1/me"): (9, 9)})

    assert await counts.shown(ACCOUNT, since_s=10 * 3600) == [
        OperationCount(operation="GET /v1/me", answered=7, failed=1),
        OperationCount(operation="POST /v1/sandboxes", answered=5, failed=0),
    ]
    assert [c.answered for c in await counts.shown(ACCOUNT, since_s=11 * 3600)] == [4]
