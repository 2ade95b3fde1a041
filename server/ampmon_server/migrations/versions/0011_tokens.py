"""Access tokens by their digests, and which of them a login code was made with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=256), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("projects", sa.Text(), nullable=True),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=True),
        sa.Column("last_used", sa.BigInteger(), nullable=True),
        sa.Column("revoked", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("digest", name="pk_tokens"),
        sqlite_with_rowid=False,
    )
    op.add_column(
        "logins",
        sa.Column("token_id", sa.String(length=12), nullable=False, server_default="own"),
    )


def downgrade() -> None:
    op.drop_column("logins", "token_id")
    op.drop_table("tokens")
