"""What the operator does with API keys. Works beside a running service: both write to one database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from runtimed.core.clock import SystemClock, iso
from runtimed.open_store import open_store
from runtimed.settings import CommandError, Settings
from runtimed.state_folder import StateFolder
from runtimed.store.accounts import Accounts, ApiKey

T = TypeVar("T")


def create(settings: Settings, name: str, read_only: bool, own_only: bool) -> dict[str, object]:
    """The new key with its text. Raises CommandError when there is no database."""

    async def work(accounts: Accounts) -> dict[str, object]:
        made, text = await accounts.create_key(
            await accounts.first_account(),
            name=name,
            kind="read_only" if read_only else "full",
            account_wide=not own_only,
        )
        return _shown(made) | {"key": text}

    return _with_accounts(settings, work)


def listed(settings: Settings) -> list[dict[str, object]]:
    async def work(accounts: Accounts) -> list[dict[str, object]]:
        return [_shown(key) for key in await accounts.list_keys()]

    return _with_accounts(settings, work)


def revoke(settings: Settings, key_id: str) -> None:
    """Raises CommandError when there is no such key. Revoking twice is once."""

    async def work(accounts: Accounts) -> bool:
        return await accounts.revoke_key(key_id)

    if not _with_accounts(settings, work):
        raise CommandError(f"there is no key {key_id}; runtimed admin key ls lists them")


def _with_accounts(settings: Settings, work: Callable[[Accounts], Awaitable[T]]) -> T:
    async def whole() -> T:
        database = await open_store(settings)
        try:
            return await work(Accounts(database, SystemClock()))
        finally:
            await database.close()

    StateFolder(settings.state_dir).make()
    return asyncio.run(whole())


def _shown(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "kind": key.kind,
        "accountWide": key.account_wide,
        "createdAt": iso(key.created_at_s),
        "revokedAt": iso(key.revoked_at_s),
    }
