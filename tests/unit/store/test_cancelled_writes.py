"""A write that is given up in the middle leaves the database to the next one, at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy import text

from runtimed.store.database import Database, open_database, sqlite_url

WRITE = text("CREATE TABLE IF NOT EXISTS kept (number INTEGER)")
ADD = text("INSERT INTO kept VALUES (1), (2), (3)")
READ = text("SELECT number FROM kept")
AT_ONCE_S = 2.0
"""Far less than the time for which a writer waits for a lock."""


async def test_one_who_tidies_up_after_a_cancelled_write_does_not_wait_for_itself(tmp_path: Path) -> None:
    database = await open_database(sqlite_url(tmp_path / "runtime.db"))
    async with database.writing() as db:
        await db.execute(WRITE)
        await db.execute(ADD)

    for turns in range(40):
        await _given_up(database, turns)

    async with database.reading() as db:
        assert len((await db.execute(READ)).all()) % 3 == 0
    await database.close()


async def _given_up(database: Database, turns: int) -> None:
    """A writer that is cancelled after so many turns of the loop, and writes again before it lets go."""

    async def write() -> None:
        async with database.writing() as db:
            await db.execute(ADD)
            await db.execute(READ)

    async def write_or_tidy_up() -> None:
        try:
            await write()
        except BaseException:
            async with asyncio.timeout(AT_ONCE_S):
                await asyncio.shield(write())
            raise

    writing = asyncio.ensure_future(write_or_tidy_up())
    for _ in range(turns):
        await asyncio.sleep(0)
    writing.cancel()
    try:
        await writing
    except asyncio.CancelledError:
        return
