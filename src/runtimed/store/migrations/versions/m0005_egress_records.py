"""Verdicts of the gateway, so that they can be asked for after a restart."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "egress_records",
        sa.Column("sandbox_id", sa.String(length=36), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("happened", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("sandbox_id", "sequence", name=op.f("pk_egress_records")),
    )


def downgrade() -> None:
    op.drop_table("egress_records")
