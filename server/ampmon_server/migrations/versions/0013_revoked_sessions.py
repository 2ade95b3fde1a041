"""Sessions that were signed out before they expired."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "revoked_sessions",
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_revoked_sessions"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("revoked_sessions")
