"""Guaranteed CPU of sandboxes, usage that was joined by the hour, fingerprints of requests under a key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision: str | None = "0005"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("cpu_floor_millis", sa.Integer(), nullable=True))
    op.add_column("usage", sa.Column("joined", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index(op.f("ix_usage_joined_at_s"), "usage", ["joined", "at_s"])
    # They were plain hashes of bodies, which may hold the value of a secret. A repeat of one of these is refused.
    op.execute(sa.text("UPDATE idempotency SET request_hash = ''"))


def downgrade() -> None:
    op.drop_index(op.f("ix_usage_joined_at_s"), table_name="usage")
    op.drop_column("usage", "joined")
    op.drop_column("sandboxes", "cpu_floor_millis")
