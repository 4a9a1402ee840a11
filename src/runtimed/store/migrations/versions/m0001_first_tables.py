"""The first tables: accounts, keys, sandboxes with their labels, and the answers kept for retries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("created_at_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
    )
    op.create_table(
        "idempotency",
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("sandbox_id", sa.String(length=36), nullable=True),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("expires_at_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "key", name=op.f("pk_idempotency")),
    )
    op.create_index(op.f("ix_idempotency_expires_at_s"), "idempotency", ["expires_at_s"], unique=False)
    op.create_index(op.f("ix_idempotency_sandbox_id"), "idempotency", ["sandbox_id"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("account_wide", sa.Boolean(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at_s", sa.Float(), nullable=False),
        sa.Column("revoked_at_s", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_keys_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
    )
    op.create_index(op.f("ix_keys_account_id"), "keys", ["account_id"], unique=False)
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("key_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=True),
        sa.Column("held_name", sa.String(length=63), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stop_reason", sa.String(length=32), nullable=True),
        sa.Column("image", sa.String(length=255), nullable=False),
        sa.Column("vcpu", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("disk_mib", sa.BigInteger(), nullable=False),
        sa.Column("lease_s", sa.Integer(), nullable=False),
        sa.Column("on_lease_end", sa.String(length=16), nullable=False),
        sa.Column("auto_wake", sa.Boolean(), nullable=False),
        sa.Column("default_user", sa.String(length=16), nullable=False),
        sa.Column("retention_days", sa.Integer(), nullable=False),
        sa.Column("env_names", sa.JSON(), nullable=False),
        sa.Column("started", sa.JSON(), nullable=True),
        sa.Column("created_at_s", sa.Float(), nullable=False),
        sa.Column("updated_at_s", sa.Float(), nullable=False),
        sa.Column("last_active_at_s", sa.Float(), nullable=False),
        sa.Column("ends_at_s", sa.Float(), nullable=False),
        sa.Column("ready_at_s", sa.Float(), nullable=True),
        sa.Column("ended_at_s", sa.Float(), nullable=True),
        sa.Column("deleted_at_s", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_sandboxes_account_id")),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_sandboxes_key_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandboxes")),
        sa.UniqueConstraint("account_id", "held_name", name=op.f("uq_sandboxes_account_id_held_name")),
    )
    op.create_index(
        op.f("ix_sandboxes_account_id_created_at_s_id"), "sandboxes", ["account_id", "created_at_s", "id"], unique=False
    )
    op.create_table(
        "sandbox_labels",
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=63), nullable=False),
        sa.Column("value", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(["sandbox_id"], ["sandboxes.id"], name=op.f("fk_sandbox_labels_sandbox_id")),
        sa.PrimaryKeyConstraint("sandbox_id", "key", name=op.f("pk_sandbox_labels")),
    )
    op.create_index(op.f("ix_sandbox_labels_key_value"), "sandbox_labels", ["key", "value"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_sandbox_labels_key_value"), table_name="sandbox_labels")
    op.drop_table("sandbox_labels")
    op.drop_index(op.f("ix_sandboxes_account_id_created_at_s_id"), table_name="sandboxes")
    op.drop_table("sandboxes")
    op.drop_index(op.f("ix_keys_account_id"), table_name="keys")
    op.drop_table("keys")
    op.drop_index(op.f("ix_idempotency_sandbox_id"), table_name="idempotency")
    op.drop_index(op.f("ix_idempotency_expires_at_s"), table_name="idempotency")
    op.drop_table("idempotency")
    op.drop_table("accounts")
