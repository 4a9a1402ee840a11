"""A database is closed after those who use it, so that nothing comes back to an event loop that is closed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from runtimed.core.tasks import spawn
from runtimed.store.database import open_database, sqlite_url

SLOW = """
WITH RECURSIVE counter(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter WHERE n < 3000000)
SELECT max(n) FROM counter
"""
"""A second of work in the database's own thread, which no cancel reaches."""


@pytest.fixture
def caught_in_threads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What threads failed with and nobody caught."""
    caught: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: caught.append(failed.exc_value))
    return caught


async def test_a_close_waits_for_a_statement_whose_task_was_cancelled(tmp_path: Path) -> None:
    database = await open_database(sqlite_url(tmp_path / "runtime.db"))
    asked = asyncio.Event()
    left = []

    async def ask() -> None:
        try:
            async with database.writing() as db:
                asked.set()
                await db.execute(text(SLOW))
        finally:
            left.append("rolled back")

    asking = spawn(ask(), name="a slow statement")
    await asked.wait()
    asking.cancel()
    await database.close()

    assert left == ["rolled back"]
    assert asking.done()


def test_nothing_is_told_to_a_loop_that_is_closed(tmp_path: Path, caught_in_threads: list[object]) -> None:
    async def whole() -> None:
        database = await open_database(sqlite_url(tmp_path / "runtime.db"))
        asked = asyncio.Event()

        async def ask() -> None:
            async with database.reading() as db:
                asked.set()
                await db.execute(text(SLOW))

        asking = spawn(ask(), name="a slow statement")
        await asked.wait()
        asking.cancel()
        await database.close()

    asyncio.run(whole())

    assert caught_in_threads == []
