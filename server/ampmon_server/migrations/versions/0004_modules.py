"""Activations and their gradients, by module."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "module_blocks",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_module_blocks_runs"),
        sa.PrimaryKeyConstraint(
            "run_id", "stream", "first_step", "attempt", name="pk_module_blocks"
        ),
    )
    op.add_column("headers", sa.Column("modules", sa.LargeBinary(), nullable=True))
    op.add_column("skips", sa.Column("origin", sa.String(length=16), nullable=True))
    op.add_column("skips", sa.Column("origin_module", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("skips", "origin_module")
    op.drop_column("skips", "origin")
    op.drop_column("headers", "modules")
    op.drop_table("module_blocks")
