"""Sandboxes that outlive their machine: pauses, kept disks, the receipts of their starts, snapshots."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None


def _columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("idle_pause_s", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("persistent", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("paused_at_s", sa.Float(), nullable=True),
        sa.Column("disk_kept", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("snapshot_id", sa.String(length=36), nullable=True),
        sa.Column("source_id", sa.String(length=36), nullable=True),
        sa.Column("note", sa.String(length=1024), nullable=True),
        sa.Column("env_sealed", sa.LargeBinary(), nullable=True),
    )


def upgrade() -> None:
    for column in _columns():
        op.add_column("sandboxes", column)
    op.create_table(
        "starts",
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("asked_at_s", sa.Float(), nullable=False),
        sa.Column("started", sa.JSON(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("policy_bound_ms", sa.Float(), nullable=False),
        sa.Column("first_command_ms", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandboxes.id"], name=op.f("fk_starts_sandbox_id")),
        sa.PrimaryKeyConstraint("sandbox_id", "number", name=op.f("pk_starts")),
    )
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("key_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("mode", sa.String(length=8), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("source_id", sa.String(length=36), nullable=False),
        sa.Column("image", sa.String(length=255), nullable=False),
        sa.Column("image_id", sa.String(length=255), nullable=True),
        sa.Column("vcpu", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("disk_mib", sa.BigInteger(), nullable=False),
        sa.Column("network", sa.JSON(), nullable=False),
        sa.Column("retention_days", sa.Integer(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at_s", sa.Float(), nullable=False),
        sa.Column("expires_at_s", sa.Float(), nullable=False),
        sa.Column("ready_at_s", sa.Float(), nullable=True),
        sa.Column("deleted_at_s", sa.Float(), nullable=True),
        sa.Column("error", sa.String(length=1024), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_snapshots_account_id")),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_snapshots_key_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshots")),
    )
    op.create_index(op.f("ix_snapshots_expires_at_s"), "snapshots", ["expires_at_s"])
    op.create_index(op.f("ix_snapshots_account_id_created_at_s_id"), "snapshots", ["account_id", "created_at_s", "id"])


def downgrade() -> None:
    op.drop_table("snapshots")
    op.drop_table("starts")
    for column in _columns():
        op.drop_column("sandboxes", column.name)
