"""The tables. Only types that SQLite and PostgreSQL both have; times are seconds since 1970 as floats."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    false,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

accounts = Table(
    "accounts",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("name", String(255), nullable=False),
    Column("created_at_s", Float, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False, index=True),
    Column("name", String(255), nullable=False),
    Column("kind", String(16), nullable=False),  # full | read_only
    Column("account_wide", Boolean, nullable=False),
    Column("sha256", String(64), nullable=False),  # of the whole key; the key itself is never stored
    Column("created_at_s", Float, nullable=False),
    Column("revoked_at_s", Float),
)

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("key_id", String(36), ForeignKey("keys.id"), nullable=False),
    Column("name", String(63)),
    # The name while its sandbox can still run, else NULL: a unique constraint that every database has.
    Column("held_name", String(63)),
    Column("state", String(16), nullable=False),
    Column("stop_reason", String(32)),
    Column("image", String(255), nullable=False),
    Column("vcpu", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("disk_mib", BigInteger, nullable=False),
    Column("lease_s", Integer, nullable=False),
    Column("on_lease_end", String(16), nullable=False),
    Column("auto_wake", Boolean, nullable=False),
    Column("default_user", String(16), nullable=False),
    Column("retention_days", Integer, nullable=False),
    Column("env_names", JSON, nullable=False),
    Column("started", JSON),
    Column("network", JSON),  # NULL is what a sandbox of before has: the open internet
    Column("idle_pause_s", Integer, nullable=False, server_default="0"),
    Column("persistent", Boolean, nullable=False, server_default=false()),
    Column("paused_at_s", Float),
    Column("disk_kept", Boolean, nullable=False, server_default=false()),
    Column("stored_bytes", BigInteger, nullable=False, server_default="0"),
    Column("snapshot_id", String(36)),
    Column("source_id", String(36)),
    Column("note", String(1024)),
    Column("cpu_floor_millis", Integer),  # NULL where none was asked for
    Column("env_sealed", LargeBinary),  # opens with a key that is not in the database
    Column("created_at_s", Float, nullable=False),
    Column("updated_at_s", Float, nullable=False),
    Column("last_active_at_s", Float, nullable=False),
    Column("ends_at_s", Float, nullable=False),
    Column("ready_at_s", Float),
    Column("ended_at_s", Float),
    Column("deleted_at_s", Float),
    UniqueConstraint("account_id", "held_name"),
    Index(None, "account_id", "created_at_s", "id"),
)

egress_secrets = Table(
    "egress_secrets",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("name", String(128), nullable=False),
    Column("plan", JSON, nullable=False),  # everything but the value
    Column("placeholder", String(64), nullable=False),
    Column("sealed", LargeBinary, nullable=False),  # opens with a key that is not in the database
    Column("created_at_s", Float, nullable=False),
    Column("updated_at_s", Float, nullable=False),
    UniqueConstraint("account_id", "name"),
)

# No foreign key: verdicts come later than they happened, and must not keep a sandbox's row from going.
egress_records = Table(
    "egress_records",
    metadata,
    Column("sandbox_id", String(36), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", Float, nullable=False),
    Column("happened", JSON, nullable=False),  # hosts are what guests wrote: JSON holds any text in every database
)

# How each machine of a sandbox came up: its receipts.
starts = Table(
    "starts",
    metadata,
    Column("sandbox_id", String(36), ForeignKey("sandboxes.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("cause", String(16), nullable=False),
    Column("asked_at_s", Float, nullable=False),
    Column("started", JSON, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("policy_bound_ms", Float, nullable=False),
    Column("first_command_ms", Float),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("account_id", String(36), ForeignKey("accounts.id"), nullable=False),
    Column("key_id", String(36), ForeignKey("keys.id"), nullable=False),
    Column("name", String(63)),
    Column("labels", JSON, nullable=False),
    Column("mode", String(8), nullable=False),  # memory | disk
    Column("state", String(16), nullable=False),
    Column("source_id", String(36), nullable=False),
    Column("image", String(255), nullable=False),
    Column("image_id", String(255)),
    Column("vcpu", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("disk_mib", BigInteger, nullable=False),
    Column("network", JSON, nullable=False),
    Column("retention_days", Integer, nullable=False),
    Column("stored_bytes", BigInteger, nullable=False),
    Column("created_at_s", Float, nullable=False),
    Column("expires_at_s", Float, nullable=False, index=True),
    Column("ready_at_s", Float),
    Column("deleted_at_s", Float),
    Column("error", String(1024)),
    Index(None, "account_id", "created_at_s", "id"),
)

# Labels have a table of their own because no JSON filter is written alike in both databases.
sandbox_labels = Table(
    "sandbox_labels",
    metadata,
    Column("sandbox_id", String(36), ForeignKey("sandboxes.id"), primary_key=True),
    Column("key", String(63), primary_key=True),
    Column("value", String(256), nullable=False),
    Index(None, "key", "value"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("account_id", String(36), primary_key=True),
    Column("key", String(128), primary_key=True),
    Column("request_hash", String(64), nullable=False),  # of method, path and body, under a key that is not here
    Column("sandbox_id", String(36), index=True),  # answers about a sandbox go when it is deleted
    Column("state", String(8), nullable=False),  # running | done
    Column("status", Integer),
    Column("answer", LargeBinary),  # zlib of the JSON
    Column("expires_at_s", Float, nullable=False, index=True),
)
