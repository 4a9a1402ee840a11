"""The tables of money and audit: terms and limits, the ledger, tabs, what was metered, who did what and how often."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, String, Table, false

from runtimed.store.schema import metadata

account_terms = Table(
    "account_terms",
    metadata,
    Column("account_id", String(36), ForeignKey("accounts.id"), primary_key=True),
    Column("prepaid", Boolean, nullable=False),
    Column("sandboxes_max", Integer),
)

key_limits = Table(
    "key_limits",
    metadata,
    Column("key_id", String(36), ForeignKey("keys.id"), primary_key=True),
    Column("daily_micros", BigInteger, nullable=False),
)

# Rows are only ever added.
ledger_entries = Table(
    "ledger_entries",
    metadata,
    Column("number", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    Column("key", String(160), nullable=False, unique=True),
    Column("at_s", Float, nullable=False),
    Column("source", String(64), nullable=False),
    Column("target", String(64), nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("reason", String(16), nullable=False),
    Column("account_id", String(36), nullable=False),
    Column("key_id", String(36)),
    Column("sandbox_id", String(36)),
    Index(None, "key_id", "at_s"),
    Index(None, "sandbox_id"),
    Index(None, "account_id", "at_s"),
)

# The sums of the entries, moved with them in one transaction, so that no balance has to be summed up to be read.
ledger_balances = Table(
    "ledger_balances",
    metadata,
    Column("account", String(64), primary_key=True),
    Column("amount", BigInteger, nullable=False),
)

# No foreign key to sandboxes: a tab is opened before its sandbox is recorded, and may outlive a create that failed.
tabs = Table(
    "tabs",
    metadata,
    Column("sandbox_id", String(36), primary_key=True),
    Column("account_id", String(36), nullable=False),
    Column("key_id", String(36), nullable=False),
    Column("unit", String(16), nullable=False),  # micros | trial_ms
    Column("running", Boolean, nullable=False),
    Column("closed", Boolean, nullable=False),
    Column("charged", BigInteger, nullable=False),
    Column("held", BigInteger, nullable=False),
    Column("document", JSON, nullable=False),
    Index(None, "account_id", "closed"),
    Index(None, "key_id", "closed"),
    Index(None, "closed"),
)

metering = Table(
    "metering",
    metadata,
    Column("sandbox_id", String(36), primary_key=True),
    Column("document", JSON, nullable=False),
)

# One row for each run of samples that was counted together.
usage = Table(
    "usage",
    metadata,
    Column("sandbox_id", String(36), primary_key=True),
    Column("last_seq", Integer, primary_key=True),
    Column("first_seq", Integer, nullable=False),
    Column("account_id", String(36), nullable=False),
    Column("key_id", String(36), nullable=False),
    Column("at_s", Float, nullable=False),
    Column("cpu_us", BigInteger, nullable=False),
    Column("running_ms", BigInteger, nullable=False),
    Column("mib_ms", BigInteger, nullable=False),
    Column("paused_mb_ms", BigInteger, nullable=False),
    Column("outbound_bytes", BigInteger, nullable=False),
    Column("credited", Boolean, nullable=False),
    Column("micros", BigInteger, nullable=False),
    Column("sample_hashes", JSON, nullable=False),
    Column("joined", Boolean, nullable=False, server_default=false()),  # from older rows of one hour
    Index(None, "account_id", "at_s"),
    Index(None, "joined", "at_s"),
)

# Rows are only ever added; each carries the hash of the one before.
audit_lines = Table(
    "audit_lines",
    metadata,
    Column("number", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=False),
    Column("account_id", String(36), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("action", String(64), nullable=False),
    Column("target", String(128), nullable=False),
    Column("actor", String(64), nullable=False),
    Column("address", String(64), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("outcome", String(64), nullable=False),
    Column("details", JSON, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Index(None, "account_id", "number"),
)

# Number and hash of the newest line, so that lines cut off at the end are missed. One row.
audit_head = Table(
    "audit_head",
    metadata,
    Column("only", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("hash", String(64), nullable=False),
)

request_counts = Table(
    "request_counts",
    metadata,
    Column("account_id", String(36), primary_key=True),
    Column("hour", Integer, primary_key=True),  # hours since 1970
    Column("operation", String(128), primary_key=True),  # method and pattern of the route
    Column("answered", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),  # with a status from 400 on
)
