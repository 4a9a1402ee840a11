"""Snapshots on the wire: what taking and changing one says, and what one looks like in an answer."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from runtimed.core.clock import iso
from runtimed.core.limits import RETENTION_DEFAULT_DAYS, RETENTION_MAX_DAYS
from runtimed.core.snapshots import SnapshotChange, SnapshotFilter, SnapshotRecord, SnapshotSpec
from runtimed.wire.sandboxes import Labels, Name
from runtimed.wire.strict import Shown, Strict


class TakeSnapshot(Strict):
    name: Name | None = None
    labels: Labels = Field(default_factory=dict)
    retention_days: int = Field(RETENTION_DEFAULT_DAYS, ge=1, le=RETENTION_MAX_DAYS, alias="retentionDays")
    mode: Literal["memory", "disk"] = "memory"

    def spec(self) -> SnapshotSpec:
        return SnapshotSpec(mode=self.mode, name=self.name, labels=self.labels, retention_days=self.retention_days)


class UpdateSnapshot(Strict):
    name: Name | None = None
    labels: Labels | None = None
    if_labels: Labels | None = Field(None, alias="ifLabels")

    def change(self) -> SnapshotChange:
        return SnapshotChange(
            name=self.name,
            clear_name="name" in self.model_fields_set and self.name is None,
            labels=self.labels,
            if_labels=self.if_labels,
        )


class ExtendSnapshot(Strict):
    retention_days: int = Field(ge=1, le=RETENTION_MAX_DAYS, alias="retentionDays")


class SnapshotQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    sandbox_id: str | None = Field(None, alias="sandboxId")
    name: str | None = None
    state: Literal["capturing", "ready", "failed", "deleting", "deleted"] | None = None
    limit: int = Field(50, ge=1, le=100)
    cursor: str | None = None

    def wanted(self) -> SnapshotFilter:
        return SnapshotFilter(source_id=self.sandbox_id, name=self.name, state=self.state)


class Snapshot(Shown):
    """A snapshot in an answer."""

    id: str
    kind: Literal["snapshot"]
    mode: Literal["memory", "disk"]
    state: Literal["capturing", "ready", "failed", "deleting", "deleted"]
    name: str | None
    labels: dict[str, str]
    sourceSandboxId: str
    retentionDays: int
    storedBytes: int
    error: str | None
    createdAt: str
    readyAt: str | None
    expiresAt: str


class SnapshotPageShown(Shown):
    data: list[Snapshot]
    nextCursor: str | None


def snapshot_body(record: SnapshotRecord) -> dict[str, object]:
    """The snapshot object of wire protocol section 5.5."""
    return {
        "id": record.id,
        "kind": "snapshot",
        "mode": record.mode,
        "state": record.state,
        "status": record.state,
        "name": record.name,
        "labels": dict(record.labels),
        "sourceSandboxId": record.source_id,
        "image": record.image,
        "sourceImageId": record.image_id,
        "shape": {
            "vcpu": record.shape.vcpu,
            "memoryMiB": record.shape.memory_mib,
            "diskMiB": record.shape.disk_mib,
        },
        "retentionDays": record.retention_days,
        "storedBytes": record.stored_bytes,
        "meteredBytes": record.stored_bytes,
        "backedUp": False,
        "durability": "host",
        "error": record.error,
        "createdAt": iso(record.created_at_s),
        "readyAt": iso(record.ready_at_s),
        "deletedAt": iso(record.deleted_at_s),
        "expiresAt": iso(record.expires_at_s),
    }
