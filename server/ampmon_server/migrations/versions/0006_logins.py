"""Codes that bring a browser in, where every server process finds them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "logins",
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_logins"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("logins")
