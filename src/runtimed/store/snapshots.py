"""The snapshots table: records in, records out; decides nothing about what is on the host's disk."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping, Select, insert, select, update

from runtimed.core.egress import NetworkPolicy
from runtimed.core.errors import InvalidRequest
from runtimed.core.sandbox import Caller
from runtimed.core.snapshots import SnapshotFilter, SnapshotPage, SnapshotRecord
from runtimed.core.specs import Shape
from runtimed.store.database import Database
from runtimed.store.schema import snapshots

UNFINISHED = ("capturing", "deleting")


class SnapshotStore:
    """Rows of snapshots."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: SnapshotRecord) -> None:
        async with self._database.writing() as db:
            await db.execute(insert(snapshots).values(**_row(record)))

    async def save(self, record: SnapshotRecord) -> None:
        """Write the record over the one with its id."""
        async with self._database.writing() as db:
            await db.execute(update(snapshots).where(snapshots.c.id == record.id).values(**_row(record)))

    async def get(self, snapshot_id: str) -> SnapshotRecord | None:
        found = await self._read(select(snapshots).where(snapshots.c.id == snapshot_id))
        return found[0] if found else None

    async def unfinished(self) -> list[SnapshotRecord]:
        """Those that were being made or removed, of every account."""
        return await self._read(select(snapshots).where(snapshots.c.state.in_(UNFINISHED)))

    async def expired(self, now_s: float) -> list[SnapshotRecord]:
        """Those that are kept no longer, of every account."""
        query = select(snapshots).where(snapshots.c.deleted_at_s.is_(None), snapshots.c.expires_at_s <= now_s)
        return await self._read(query)

    async def page(self, caller: Caller, wanted: SnapshotFilter, *, limit: int, cursor: str | None) -> SnapshotPage:
        """A page of what the caller may see, oldest first. Raises InvalidRequest for a cursor that is not ours."""
        query = select(snapshots).where(snapshots.c.account_id == caller.account_id, snapshots.c.deleted_at_s.is_(None))
        if not caller.account_wide:
            query = query.where(snapshots.c.key_id == caller.key_id)
        for column, value in (("source_id", wanted.source_id), ("name", wanted.name), ("state", wanted.state)):
            if value is not None:
                query = query.where(snapshots.c[column] == value)
        if cursor is not None:
            at_s, after = _read_cursor(cursor)
            newer = snapshots.c.created_at_s > at_s
            query = query.where(newer | ((snapshots.c.created_at_s == at_s) & (snapshots.c.id > after)))
        found = await self._read(query.order_by(snapshots.c.created_at_s, snapshots.c.id).limit(limit + 1))
        shown = tuple(found[:limit])
        return SnapshotPage(records=shown, next_cursor=_write_cursor(shown[-1]) if len(found) > limit else None)

    async def _read(self, query: Select[Any]) -> list[SnapshotRecord]:
        async with self._database.reading() as db:
            return [_record(row) for row in (await db.execute(query)).mappings()]


def _row(record: SnapshotRecord) -> dict[str, Any]:
    row = asdict(record)
    row |= row.pop("shape")
    row["labels"], row["network"] = dict(record.labels), record.network.as_json()
    return row


def _record(row: RowMapping) -> SnapshotRecord:
    fields = dict(row)
    shape = Shape(vcpu=fields.pop("vcpu"), memory_mib=fields.pop("memory_mib"), disk_mib=fields.pop("disk_mib"))
    return SnapshotRecord(**{**fields, "shape": shape, "network": NetworkPolicy.from_json(row["network"])})


def _write_cursor(last: SnapshotRecord) -> str:
    return base64.urlsafe_b64encode(json.dumps([last.created_at_s, last.id]).encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[float, str]:
    try:
        at_s, after = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return float(at_s), str(after)
    except (ValueError, TypeError, binascii.Error) as error:
        raise InvalidRequest([{"field": "cursor", "message": "is not a cursor of this list"}]) from error
