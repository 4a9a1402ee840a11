"""The table of secrets: records in, records out, their values sealed by others and never opened here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping, delete, insert, select, update

from runtimed.core.ids import AccountId
from runtimed.core.secrets import RequestRule, SecretPlan, SecretRecord
from runtimed.store.database import Database
from runtimed.store.schema import egress_secrets as table


class SecretStore:
    """Rows of secrets."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, record: SecretRecord) -> None:
        """Write over the one with its id, or add it. Idempotent."""
        row = {
            "account_id": record.account_id,
            "name": record.plan.name,
            "plan": asdict(record.plan),
            "placeholder": record.placeholder,
            "sealed": record.sealed,
            "created_at_s": record.created_at_s,
            "updated_at_s": record.updated_at_s,
        }
        async with self._database.writing() as db:
            changed = await db.execute(update(table).where(table.c.id == record.id).values(**row))
            if not changed.rowcount:
                await db.execute(insert(table).values(id=record.id, **row))

    async def named(self, account_id: AccountId, name: str) -> SecretRecord | None:
        wanted = select(table).where(table.c.account_id == account_id, table.c.name == name)
        async with self._database.reading() as db:
            row = (await db.execute(wanted)).mappings().first()
        return _record(row) if row else None

    async def page(self, account_id: AccountId, *, after: str, limit: int) -> list[SecretRecord]:
        """By name, those after one."""
        wanted = select(table).where(table.c.account_id == account_id, table.c.name > after)
        async with self._database.reading() as db:
            rows = (await db.execute(wanted.order_by(table.c.name).limit(limit))).mappings().all()
        return [_record(row) for row in rows]

    async def all(self) -> list[SecretRecord]:
        """Of every account."""
        async with self._database.reading() as db:
            rows = (await db.execute(select(table))).mappings().all()
        return [_record(row) for row in rows]

    async def drop(self, secret_id: str) -> None:
        """Twice is once."""
        async with self._database.writing() as db:
            await db.execute(delete(table).where(table.c.id == secret_id))


def _record(row: RowMapping) -> SecretRecord:
    return SecretRecord(
        id=row["id"],
        account_id=row["account_id"],
        plan=_plan(row["plan"]),
        placeholder=row["placeholder"],
        sealed=bytes(row["sealed"]),
        created_at_s=row["created_at_s"],
        updated_at_s=row["updated_at_s"],
    )


def _plan(kept: dict[str, Any]) -> SecretPlan:
    rules = kept["rules"]
    return SecretPlan(
        name=kept["name"],
        hosts=tuple(kept["hosts"]),
        header=kept["header"],
        format=kept["format"],
        rules=None
        if rules is None
        else tuple(RequestRule(methods=tuple(r["methods"]), paths=tuple(r["paths"])) for r in rules),
        env=kept["env"],
    )
