"""Accounts and their API keys: made, listed, revoked and recognised. Keys are kept only as their SHA-256."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import RowMapping, insert, select, update

from runtimed.core.clock import Clock
from runtimed.core.errors import AlreadyExists
from runtimed.core.ids import AccountId, KeyId, new_id
from runtimed.core.sandbox import Caller
from runtimed.store.database import Database
from runtimed.store.schema import accounts, keys

KeyKind = Literal["full", "read_only"]

_KEY = re.compile(r"rtcloud_([0-9a-f-]{36})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, kw_only=True)
class ApiKey:
    """What is known of a key; never the key itself."""

    id: KeyId
    account_id: AccountId
    name: str
    kind: KeyKind
    account_wide: bool
    created_at_s: float
    revoked_at_s: float | None


class Accounts:
    """The accounts and keys tables."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def first_account(self) -> AccountId:
        """The oldest account; made when there is none. Idempotent."""
        async with self._database.writing() as db:
            found = (await db.execute(select(accounts.c.id).order_by(accounts.c.created_at_s).limit(1))).scalar()
            if found is None:
                found = new_id()
                await db.execute(
                    insert(accounts).values(id=found, name="default", created_at_s=self._clock.now_s()),
                )
        return AccountId(found)

    async def create_account(self, name: str) -> AccountId:
        """Raises AlreadyExists for a name that another account has."""
        account_id = new_id()
        async with self._database.writing() as db:
            if (await db.execute(select(accounts.c.id).where(accounts.c.name == name).limit(1))).scalar() is not None:
                raise AlreadyExists(f"there is an account {name!r} already")
            await db.execute(insert(accounts).values(id=account_id, name=name, created_at_s=self._clock.now_s()))
        return AccountId(account_id)

    async def account_name(self, account_id: AccountId) -> str:
        async with self._database.reading() as db:
            return str((await db.execute(select(accounts.c.name).where(accounts.c.id == account_id))).scalar_one())

    async def create_key(
        self, account_id: AccountId, *, name: str, kind: KeyKind, account_wide: bool = True
    ) -> tuple[ApiKey, str]:
        """A new key and its text, which is shown this once and cannot be had again."""
        key_id = KeyId(new_id())
        secret = base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
        text = f"rtcloud_{key_id}_{secret}"
        row: dict[str, Any] = {
            "id": key_id,
            "account_id": account_id,
            "name": name,
            "kind": kind,
            "account_wide": account_wide,
            "sha256": _digest(text),
            "created_at_s": self._clock.now_s(),
            "revoked_at_s": None,
        }
        async with self._database.writing() as db:
            await db.execute(insert(keys).values(**row))
        del row["sha256"]
        return ApiKey(**row), text

    async def list_keys(self) -> list[ApiKey]:
        async with self._database.reading() as db:
            rows = (await db.execute(select(keys).order_by(keys.c.created_at_s))).mappings()
            return [_key(row) for row in rows]

    async def revoke_key(self, key_id: str) -> bool:
        """Whether there is such a key. Revoking twice keeps the first time."""
        async with self._database.writing() as db:
            found = (await db.execute(select(keys.c.id).where(keys.c.id == key_id))).scalar()
            await db.execute(
                update(keys)
                .where(keys.c.id == key_id, keys.c.revoked_at_s.is_(None))
                .values(revoked_at_s=self._clock.now_s())
            )
        return found is not None

    async def recognise(self, text: str) -> Caller | None:
        """Who holds this key; None for one that is unknown, wrong or revoked."""
        shape = _KEY.fullmatch(text)
        if shape is None:
            return None
        async with self._database.reading() as db:
            row = (await db.execute(select(keys).where(keys.c.id == shape[1]))).mappings().first()
        if row is None or row["revoked_at_s"] is not None or not hmac.compare_digest(row["sha256"], _digest(text)):
            return None
        return Caller(
            account_id=AccountId(row["account_id"]),
            key_id=KeyId(row["id"]),
            read_only=row["kind"] == "read_only",
            account_wide=row["account_wide"],
        )


def _digest(text: str) -> str:
    # The secret has 256 bits of its own, so that one fast hash is enough.
    return hashlib.sha256(text.encode()).hexdigest()


def _key(row: RowMapping) -> ApiKey:
    return ApiKey(**{name: row[name] for name in ApiKey.__dataclass_fields__})
