"""Money and audit: the ledger, tabs, what was metered, limits of accounts and keys, the audit chain, request counts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "account_terms",
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("prepaid", sa.Boolean(), nullable=False),
        sa.Column("sandboxes_max", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_account_terms_account_id")),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_account_terms")),
    )
    op.create_table(
        "key_limits",
        sa.Column("key_id", sa.String(length=36), nullable=False),
        sa.Column("daily_micros", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_key_limits_key_id")),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_key_limits")),
    )
    op.create_table(
        "ledger_entries",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=160), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=16), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("key_id", sa.String(length=36), nullable=True),
        sa.Column("sandbox_id", sa.String(length=36), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_ledger_entries")),
        sa.UniqueConstraint("key", name=op.f("uq_ledger_entries_key")),
    )
    op.create_index(op.f("ix_ledger_entries_key_id_at_s"), "ledger_entries", ["key_id", "at_s"], unique=False)
    op.create_index(op.f("ix_ledger_entries_sandbox_id"), "ledger_entries", ["sandbox_id"], unique=False)
    op.create_index(op.f("ix_ledger_entries_account_id_at_s"), "ledger_entries", ["account_id", "at_s"], unique=False)
    op.create_table(
        "ledger_balances",
        sa.Column("account", sa.String(length=64), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_ledger_balances")),
    )
    op.create_table(
        "tabs",
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("key_id", sa.String(length=36), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.Column("running", sa.Boolean(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("charged", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("sandbox_id", name=op.f("pk_tabs")),
    )
    op.create_index(op.f("ix_tabs_account_id_closed"), "tabs", ["account_id", "closed"], unique=False)
    op.create_index(op.f("ix_tabs_key_id_closed"), "tabs", ["key_id", "closed"], unique=False)
    op.create_index(op.f("ix_tabs_closed"), "tabs", ["closed"], unique=False)
    op.create_table(
        "metering",
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("sandbox_id", name=op.f("pk_metering")),
    )
    op.create_table(
        "usage",
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("first_seq", sa.Integer(), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("key_id", sa.String(length=36), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("cpu_us", sa.BigInteger(), nullable=False),
        sa.Column("running_ms", sa.BigInteger(), nullable=False),
        sa.Column("mib_ms", sa.BigInteger(), nullable=False),
        sa.Column("paused_mb_ms", sa.BigInteger(), nullable=False),
        sa.Column("outbound_bytes", sa.BigInteger(), nullable=False),
        sa.Column("credited", sa.Boolean(), nullable=False),
        sa.Column("micros", sa.BigInteger(), nullable=False),
        sa.Column("sample_hashes", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("sandbox_id", "last_seq", name=op.f("pk_usage")),
    )
    op.create_index(op.f("ix_usage_account_id_at_s"), "usage", ["account_id", "at_s"], unique=False)
    op.create_table(
        "audit_lines",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=128), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.String(length=64), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit_lines")),
    )
    op.create_index(op.f("ix_audit_lines_account_id_number"), "audit_lines", ["account_id", "number"], unique=False)
    op.create_table(
        "audit_head",
        sa.Column("only", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("only", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "request_counts",
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("operation", sa.String(length=128), nullable=False),
        sa.Column("answered", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "hour", "operation", name=op.f("pk_request_counts")),
    )


def downgrade() -> None:
    for table in ("request_counts", "audit_head", "audit_lines"):
        op.drop_table(table)
    for table in ("usage", "metering", "tabs", "ledger_balances", "ledger_entries", "key_limits", "account_terms"):
        op.drop_table(table)
