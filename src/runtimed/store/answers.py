"""The idempotency table: which request has which key, and what was answered, for 24 hours."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError

from runtimed.core.ids import AccountId
from runtimed.store.database import Database
from runtimed.store.schema import idempotency

KEPT_S = 24 * 3600
"""The wire protocol's figure."""


@dataclass(frozen=True, kw_only=True)
class KeptAnswer:
    """One key's request and its answer; `status` None means that it still runs, or died running."""

    account_id: AccountId
    key: str
    request_hash: str
    sandbox_id: str | None
    status: int | None
    body: Mapping[str, object]


class AnswerStore:
    """Rows of answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, answer: KeptAnswer, *, now_s: float) -> KeptAnswer | None:
        """Take the key for a request that starts now. None is success; else the answer is what has the key already."""
        try:
            async with self._database.writing() as db:
                expired = idempotency.c.expires_at_s <= now_s
                await db.execute(delete(idempotency).where(*_is(answer.account_id, answer.key), expired))
                await db.execute(insert(idempotency).values(**_row(answer, now_s)))
        except IntegrityError:
            return await self.find(answer.account_id, answer.key, now_s=now_s)
        return None

    async def finish(self, answers: Sequence[KeptAnswer], *, now_s: float) -> None:
        """Keep these answers, claimed before or not, in one transaction. Idempotent."""
        async with self._database.writing() as db:
            for answer in answers:
                await db.execute(delete(idempotency).where(*_is(answer.account_id, answer.key)))
            await db.execute(insert(idempotency), [_row(answer, now_s) for answer in answers])

    async def give_up(self, account_id: AccountId, key: str) -> None:
        """Free a key whose request did nothing, so that a retry runs. Idempotent."""
        async with self._database.writing() as db:
            await db.execute(delete(idempotency).where(*_is(account_id, key)))

    async def find(self, account_id: AccountId, key: str, *, now_s: float) -> KeptAnswer | None:
        async with self._database.reading() as db:
            query = select(idempotency).where(*_is(account_id, key), idempotency.c.expires_at_s > now_s)
            row = (await db.execute(query)).mappings().first()
        if row is None:
            return None
        return KeptAnswer(
            account_id=account_id,
            key=key,
            request_hash=row["request_hash"],
            sandbox_id=row["sandbox_id"],
            status=row["status"] if row["state"] == "done" else None,
            body=json.loads(zlib.decompress(row["answer"])) if row["answer"] else {},
        )

    async def purge(self, *, now_s: float) -> None:
        """Remove what is older than it is kept."""
        async with self._database.writing() as db:
            await db.execute(delete(idempotency).where(idempotency.c.expires_at_s <= now_s))

    async def abandon_running(self) -> None:
        """At the start of the service: nothing runs any more of what an earlier process had claimed."""
        async with self._database.writing() as db:
            await db.execute(delete(idempotency).where(idempotency.c.state == "running"))


def _is(account_id: AccountId, key: str) -> tuple[Any, Any]:
    return idempotency.c.account_id == account_id, idempotency.c.key == key


def _row(answer: KeptAnswer, now_s: float) -> dict[str, Any]:
    done = answer.status is not None
    return {
        "account_id": answer.account_id,
        "key": answer.key,
        "request_hash": answer.request_hash,
        "sandbox_id": answer.sandbox_id,
        "state": "done" if done else "running",
        "status": answer.status,
        "answer": zlib.compress(json.dumps(answer.body).encode(), 1) if done else None,
        "expires_at_s": now_s + KEPT_S,
    }
