"""How often each run is sampled, and whether that keeps to its budget."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("sampling_interval", sa.BigInteger(), nullable=True))
    op.add_column("runs", sa.Column("budget", sa.Double(), nullable=True))
    # Runs that were stored before are not known to be over a budget.
    op.add_column(
        "runs", sa.Column("over_budget", sa.SmallInteger(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    op.drop_column("runs", "over_budget")
    op.drop_column("runs", "budget")
    op.drop_column("runs", "sampling_interval")
