"""The sandboxes table: records in, records out; decides nothing about their lives."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping, Select, delete, exists, insert, select, update
from sqlalchemy.exc import IntegrityError

from runtimed.core.egress import NetworkPolicy
from runtimed.core.errors import InvalidRequest, NameTaken
from runtimed.core.ids import AccountId, KeyId, SandboxId
from runtimed.core.lifecycle import State, StopReason
from runtimed.core.sandbox import Caller, Page, SandboxFilter, SandboxRecord, StartRecord
from runtimed.core.specs import Shape, Started
from runtimed.store.database import Database
from runtimed.store.schema import idempotency, sandbox_labels, sandboxes, starts


class SandboxStore:
    """Rows of sandboxes and their labels."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: SandboxRecord) -> None:
        """Raises NameTaken when another sandbox of the account holds the name."""
        try:
            async with self._database.writing() as db:
                await db.execute(insert(sandboxes).values(**_row(record)))
                if record.labels:
                    await db.execute(insert(sandbox_labels), _label_rows(record))
        except IntegrityError as error:
            raise await self._name_taken(record) from error

    async def save(self, record: SandboxRecord, *, labels_too: bool = False, start: StartRecord | None = None) -> None:
        """Write the record over the one with its id, and the receipt of a start. Raises NameTaken like `add`."""
        try:
            async with self._database.writing() as db:
                await db.execute(update(sandboxes).where(sandboxes.c.id == record.id).values(**_row(record)))
                if start is not None:
                    await db.execute(insert(starts).values(**asdict(start)))
                if labels_too:
                    await db.execute(delete(sandbox_labels).where(sandbox_labels.c.sandbox_id == record.id))
                    if record.labels:
                        await db.execute(insert(sandbox_labels), _label_rows(record))
        except IntegrityError as error:
            raise await self._name_taken(record) from error

    async def drop(self, sandbox_id: SandboxId) -> None:
        """Forget a sandbox that never was: nothing of it was started or answered. Idempotent."""
        async with self._database.writing() as db:
            await db.execute(delete(sandbox_labels).where(sandbox_labels.c.sandbox_id == sandbox_id))
            await db.execute(delete(starts).where(starts.c.sandbox_id == sandbox_id))
            await db.execute(delete(sandboxes).where(sandboxes.c.id == sandbox_id))

    async def note_first_command(self, start: StartRecord) -> None:
        async with self._database.writing() as db:
            await db.execute(
                update(starts)
                .where(starts.c.sandbox_id == start.sandbox_id, starts.c.number == start.number)
                .values(first_command_ms=start.first_command_ms)
            )

    async def starts(self, sandbox_id: SandboxId) -> list[StartRecord]:
        """Its receipts, oldest first."""
        query = select(starts).where(starts.c.sandbox_id == sandbox_id).order_by(starts.c.number)
        async with self._database.reading() as db:
            rows = list((await db.execute(query)).mappings())
        return [StartRecord(**{**row, "started": Started(**row["started"])}) for row in rows]

    async def forget_answers(self, sandbox_id: SandboxId) -> None:
        """Remove what was kept for retries about this sandbox: the output of its commands is in there."""
        async with self._database.writing() as db:
            await db.execute(delete(idempotency).where(idempotency.c.sandbox_id == sandbox_id))

    async def touch(self, active_at_s: Mapping[SandboxId, float]) -> None:
        """Note when sandboxes were last used."""
        async with self._database.writing() as db:
            for sandbox_id, at_s in active_at_s.items():
                await db.execute(update(sandboxes).where(sandboxes.c.id == sandbox_id).values(last_active_at_s=at_s))

    async def get(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        async with self._database.reading() as db:
            found = await self._read(db, select(sandboxes).where(sandboxes.c.id == sandbox_id))
        return found[0] if found else None

    async def holder(self, account_id: AccountId, name: str) -> SandboxRecord | None:
        """The sandbox that has this name and can still run."""
        wanted = select(sandboxes).where(sandboxes.c.account_id == account_id, sandboxes.c.held_name == name)
        async with self._database.reading() as db:
            found = await self._read(db, wanted)
        return found[0] if found else None

    async def unfinished(self) -> list[SandboxRecord]:
        """All of which the host has anything, of every account."""
        there = (sandboxes.c.state != State.STOPPED.value) | sandboxes.c.disk_kept
        async with self._database.reading() as db:
            return await self._read(db, select(sandboxes).where(there))

    async def page(self, caller: Caller, wanted: SandboxFilter, *, limit: int, cursor: str | None) -> Page:
        """A page of what the caller may see, oldest first. Raises InvalidRequest for a cursor that is not ours."""
        query = select(sandboxes).where(sandboxes.c.account_id == caller.account_id, sandboxes.c.deleted_at_s.is_(None))
        if not caller.account_wide:
            query = query.where(sandboxes.c.key_id == caller.key_id)
        query = _filtered(query, wanted)
        if cursor is not None:
            at_s, after = _read_cursor(cursor)
            newer = sandboxes.c.created_at_s > at_s
            query = query.where(newer | ((sandboxes.c.created_at_s == at_s) & (sandboxes.c.id > after)))
        query = query.order_by(sandboxes.c.created_at_s, sandboxes.c.id).limit(limit + 1)
        async with self._database.reading() as db:
            found = await self._read(db, query)
        more = len(found) > limit
        shown = tuple(found[:limit])
        return Page(records=shown, next_cursor=_write_cursor(shown[-1]) if more else None)

    async def _read(self, db: Any, query: Select[Any]) -> list[SandboxRecord]:  # noqa: ANN401 - a connection
        rows = list((await db.execute(query)).mappings())
        ids = [row["id"] for row in rows]
        labels: dict[str, dict[str, str]] = {}
        if ids:
            found = await db.execute(select(sandbox_labels).where(sandbox_labels.c.sandbox_id.in_(ids)))
            for label in found.mappings():
                labels.setdefault(label["sandbox_id"], {})[label["key"]] = label["value"]
        return [_record(row, labels.get(row["id"], {})) for row in rows]

    async def _name_taken(self, record: SandboxRecord) -> NameTaken:
        holder = await self.holder(record.account_id, record.name or "")
        return name_taken(record.name or "", holder)


def name_taken(name: str, holder: SandboxRecord | None) -> NameTaken:
    details = {} if holder is None else {"sandboxId": holder.id, "state": holder.state.value}
    return NameTaken(
        f"the name {name!r} belongs to another sandbox that can still run" + (f": {holder.id}" if holder else ""),
        hint="use that sandbox, delete it, or take another name",
        details=details,
    )


def _filtered(query: Select[Any], wanted: SandboxFilter) -> Select[Any]:
    if wanted.states:
        query = query.where(sandboxes.c.state.in_([s.value for s in wanted.states]))
    elif not wanted.include_stopped:
        query = query.where(sandboxes.c.state != State.STOPPED.value)
    if wanted.name is not None:
        query = query.where(sandboxes.c.name == wanted.name)
    for key, value in wanted.labels.items():
        query = query.where(
            exists().where(
                sandbox_labels.c.sandbox_id == sandboxes.c.id,
                sandbox_labels.c.key == key,
                sandbox_labels.c.value == value,
            )
        )
    return query


def _row(record: SandboxRecord) -> dict[str, Any]:
    row = asdict(record)
    del row["labels"]
    row |= row.pop("shape")
    row["default_user"] = row.pop("user")
    row["state"] = record.state.value
    row["stop_reason"] = record.stop_reason.value if record.stop_reason else None
    row["held_name"] = record.name if record.can_run else None
    row["env_names"] = list(record.env_names)
    row["network"] = record.network.as_json()
    return row


def _label_rows(record: SandboxRecord) -> list[dict[str, str]]:
    return [{"sandbox_id": record.id, "key": key, "value": value} for key, value in record.labels.items()]


_AS_IS: Iterable[str] = (
    *("name", "image", "lease_s", "on_lease_end", "auto_wake", "retention_days", "idle_pause_s", "persistent"),
    *("paused_at_s", "disk_kept", "stored_bytes", "snapshot_id", "source_id", "note", "env_sealed", "cpu_floor_millis"),
    *("created_at_s", "updated_at_s", "last_active_at_s", "ends_at_s", "ready_at_s", "ended_at_s", "deleted_at_s"),
)


def _record(row: RowMapping, labels: Mapping[str, str]) -> SandboxRecord:
    return SandboxRecord(
        id=SandboxId(row["id"]),
        account_id=AccountId(row["account_id"]),
        key_id=KeyId(row["key_id"]),
        labels=labels,
        env_names=tuple(row["env_names"]),
        shape=Shape(vcpu=row["vcpu"], memory_mib=row["memory_mib"], disk_mib=row["disk_mib"]),
        user=row["default_user"],
        state=State(row["state"]),
        stop_reason=StopReason(row["stop_reason"]) if row["stop_reason"] else None,
        started=Started(**row["started"]) if row["started"] else None,
        network=NetworkPolicy.from_json(row["network"]) if row["network"] else NetworkPolicy(),
        **{name: row[name] for name in _AS_IS},
    )


def _write_cursor(last: SandboxRecord) -> str:
    return base64.urlsafe_b64encode(json.dumps([last.created_at_s, last.id]).encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[float, str]:
    try:
        at_s, after = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return float(at_s), str(after)
    except (ValueError, TypeError, binascii.Error) as error:
        raise InvalidRequest([{"field": "cursor", "message": "is not a cursor of this list"}]) from error
