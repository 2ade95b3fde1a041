"""What is wrong with a run, as it was last judged, and the skipped updates after which its schedule went on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runs", sa.Column("scheduled", sa.BigInteger(), nullable=False, server_default="0")
    )
    op.add_column("runs", sa.Column("verdict", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("severity", sa.String(16), nullable=True))
    op.add_column("runs", sa.Column("findings", sa.Text(), nullable=True))


def downgrade() -> None:
    for name in ("findings", "severity", "verdict", "scheduled"):
        op.drop_column("runs", name)
