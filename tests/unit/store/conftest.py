"""A database in a file of its own, with one account and key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtimed.core.clock import ManualClock
from runtimed.core.sandbox import Caller
from runtimed.store.accounts import Accounts
from runtimed.store.database import Database, open_database, sqlite_url


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await open_database(sqlite_url(tmp_path / "runtime.db"))
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def accounts(database: Database, clock: ManualClock) -> Accounts:
    return Accounts(database, clock)


@pytest.fixture
async def caller(accounts: Accounts) -> Caller:
    _, text = await accounts.create_key(await accounts.first_account(), name="test", kind="full")
    found = await accounts.recognise(text)
    assert found is not None
    return found
