"""Keys: recognised while they are valid, and never stored."""

from __future__ import annotations

import re
from pathlib import Path

from runtimed.store.accounts import Accounts
from runtimed.store.database import Database


async def test_a_new_key_has_the_shape_that_clients_look_for(accounts: Accounts) -> None:
    _, text = await accounts.create_key(await accounts.first_account(), name="a", kind="full")

    assert re.fullmatch(r"rtcloud_[a-f0-9-]{36}_[A-Za-z0-9_-]{43}", text)


async def test_a_key_is_recognised_until_it_is_revoked(accounts: Accounts) -> None:
    key, text = await accounts.create_key(
        await accounts.first_account(), name="a", kind="read_only", account_wide=False
    )
    before = await accounts.recognise(text)

    assert await accounts.revoke_key(key.id)

    assert before is not None and (before.read_only, before.account_wide) == (True, False)
    assert await accounts.recognise(text) is None


async def test_a_key_with_another_secret_is_nobody(accounts: Accounts) -> None:
    _, text = await accounts.create_key(await accounts.first_account(), name="a", kind="full")
    other = text[:-1] + ("A" if text[-1] != "A" else "B")

    assert await accounts.recognise(other) is None
    assert await accounts.recognise("rtcloud_") is None


async def test_the_text_of_a_key_is_nowhere_in_the_database(
    accounts: Accounts, database: Database, tmp_path: Path
) -> None:
    _, text = await accounts.create_key(await accounts.first_account(), name="a", kind="full")
    await database.close()

    secret = text.rsplit("_", 1)[1].encode()
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())

    assert b"keys" in kept
    assert secret not in kept


async def test_there_is_one_first_account(accounts: Accounts) -> None:
    assert await accounts.first_account() == await accounts.first_account()


async def test_revoking_a_key_that_is_not_there_says_so(accounts: Accounts) -> None:
    assert not await accounts.revoke_key("6cc1954f-1965-4f85-86a9-eaa6d0364713")
