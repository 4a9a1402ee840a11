"""What sandboxes may reach, and the secrets they use without seeing them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("network", sa.JSON(), nullable=True))
    op.create_table(
        "egress_secrets",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("account_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("placeholder", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at_s", sa.Float(), nullable=False),
        sa.Column("updated_at_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_egress_secrets_account_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_egress_secrets")),
        sa.UniqueConstraint("account_id", "name", name=op.f("uq_egress_secrets_account_id_name")),
    )


def downgrade() -> None:
    op.drop_table("egress_secrets")
    op.drop_column("sandboxes", "network")
