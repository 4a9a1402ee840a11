"""A database that has no room says so, and goes on when there is some."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from runtimed.core.errors import NoCapacity
from runtimed.store.database import open_database, sqlite_url


async def test_what_a_full_disk_cannot_take_is_refused_and_can_be_asked_again(tmp_path: Path) -> None:
    database = await open_database(sqlite_url(tmp_path / "runtime.db"))
    try:
        async with database.writing() as connection:
            await connection.execute(text("CREATE TABLE kept (content BLOB)"))
            pages = (await connection.execute(text("PRAGMA page_count"))).scalar_one()
            await connection.execute(text(f"PRAGMA max_page_count = {pages + 1}"))
        with pytest.raises(NoCapacity, match="full"):
            async with database.writing() as connection:
                await connection.execute(text("INSERT INTO kept VALUES (zeroblob(100000))"))

        async with database.writing() as connection:
            await connection.execute(text("PRAGMA max_page_count = 100000"))
            await connection.execute(text("INSERT INTO kept VALUES (zeroblob(100000))"))
            kept = (await connection.execute(text("SELECT count(*) FROM kept"))).scalar_one()
        assert kept == 1
    finally:
        await database.close()
