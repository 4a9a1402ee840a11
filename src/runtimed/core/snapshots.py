"""Snapshots as values: what is kept of a sandbox under an id of its own, to begin others from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from runtimed.core.egress import NetworkPolicy
from runtimed.core.ids import AccountId, KeyId, SandboxId
from runtimed.core.sandbox import SandboxRecord
from runtimed.core.specs import Shape

SnapshotMode = Literal["memory", "disk"]
SnapshotState = Literal["capturing", "ready", "failed", "deleting", "deleted"]


@dataclass(frozen=True, kw_only=True)
class SnapshotSpec:
    """What a caller asked for."""

    mode: SnapshotMode = "memory"
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    retention_days: int


@dataclass(frozen=True, kw_only=True)
class SnapshotRecord:
    """Everything that is recorded of a snapshot."""

    id: str
    account_id: AccountId
    key_id: KeyId
    name: str | None
    labels: Mapping[str, str]
    mode: SnapshotMode
    state: SnapshotState
    source_id: SandboxId
    image: str
    image_id: str | None
    shape: Shape
    network: NetworkPolicy
    """Of its source: a copy has the same rules unless it names others."""
    retention_days: int
    created_at_s: float
    expires_at_s: float
    ready_at_s: float | None = None
    deleted_at_s: float | None = None
    stored_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotFilter:
    """Which snapshots a list shows; deleted ones never."""

    source_id: str | None = None
    name: str | None = None
    state: SnapshotState | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotPage:
    records: tuple[SnapshotRecord, ...]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class SnapshotChange:
    """An update; None leaves a field as it is."""

    name: str | None = None
    clear_name: bool = False
    labels: Mapping[str, str] | None = None
    if_labels: Mapping[str, str] | None = None
    """Refuse with `snapshot_metadata_changed` unless the labels are these."""


@dataclass(frozen=True, kw_only=True)
class Copies:
    """What a fork came to: the copies, running, and what they began as where that was to be kept."""

    sandboxes: tuple[SandboxRecord, ...]
    snapshot: SnapshotRecord | None
