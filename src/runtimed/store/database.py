"""Opens the database and brings its tables up to date; knows no table's meaning."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, ExceptionContext, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from runtimed.core.errors import NoCapacity

BUSY_TIMEOUT_MS = 5000
"""How long a writer waits for the operator's command line, which writes to the same file."""
LEFT_WITHIN_S = 10.0
"""A close waits this long for whoever still uses a connection, cancelled ones included."""


class Database:
    """One engine. Writes of this process queue up here, since SQLite has one writer at a time."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._writing = asyncio.Lock()
        self._users = 0
        self._left = asyncio.Event()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        async with self._used(), self._engine.connect() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """One transaction: committed at the end, rolled back when the block raises.

        Raises NoCapacity when the host's disk has no room for it; nothing of it is written then.
        """
        try:
            async with self._writing, self._used(), self._engine.begin() as connection:
                yield connection
        except OperationalError as failure:
            if getattr(failure.orig, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
                raise
            raise NoCapacity(
                "the host's disk is full: nothing can be written down",
                hint="Free disk space on the host, and ask again.",
                retry_after_ms=5000,
            ) from failure

    async def close(self) -> None:
        """Wait for those who use a connection, and close all.

        Whoever was cancelled still rolls back; without a wait that would end after the event loop is closed, and fail.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEFT_WITHIN_S):
                while self._users:
                    self._left.clear()
                    await self._left.wait()
        await self._engine.dispose()

    @contextlib.asynccontextmanager
    async def _used(self) -> AsyncIterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._left.set()


def sqlite_url(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


async def open_database(url: str) -> Database:
    """Connect and migrate. Raises sqlalchemy's OperationalError when the database cannot be opened."""
    engine = create_async_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "handle_error", _keep_when_cancelled)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_migrate)
    except BaseException:
        await engine.dispose()
        raise
    return Database(engine)


def _prepare_sqlite(connection: object, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]  # a DBAPI connection has no public type
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",  # a power cut may lose the newest rows; the machines they speak of are gone as well
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _keep_when_cancelled(failed: ExceptionContext) -> None:
    """A wait that was cancelled is no lost connection: roll back and use it again, instead of closing it at once.

    A statement that is not read to its end keeps a closed connection, and the lock on the file, for as long as the
    cancellation has a traceback. Whoever tidies up after it would wait for itself.
    """
    if isinstance(failed.original_exception, asyncio.CancelledError):
        failed.is_disconnect = False


def _migrate(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
