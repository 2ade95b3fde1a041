"""Alerts with their messages and mutes, and on a run's row how many of them fire."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("firing", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("alerts_due", sa.BigInteger(), nullable=True))
    rule = sa.String(length=64).with_variant(sa.String(length=64, collation="C"), "postgresql")
    op.create_table(
        "alerts",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("rule", rule, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("fired", sa.BigInteger(), nullable=True),
        sa.Column("resolved", sa.BigInteger(), nullable=True),
        sa.Column("told", sa.BigInteger(), nullable=True),
        sa.Column("acknowledged", sa.BigInteger(), nullable=True),
        sa.Column("acknowledged_by", sa.String(length=256), nullable=True),
        sa.Column("found", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_alerts_runs"),
        sa.PrimaryKeyConstraint("run_id", "rule", name="pk_alerts"),
        sqlite_with_rowid=False,
    )
    _create_messages()
    op.create_table(
        "mutes",
        sa.Column("mute_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("project", sa.String(length=256), nullable=True),
        sa.Column("of_run", sa.LargeBinary(length=16), nullable=True),
        sa.Column("rule", sa.String(length=64), nullable=True),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("made_by", sa.String(length=256), nullable=False),
        sa.PrimaryKeyConstraint("mute_id", name="pk_mutes"),
        sqlite_with_rowid=False,
    )


def _create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("message_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("of_run", sa.LargeBinary(length=16), nullable=False),
        sa.Column("rule", sa.String(length=64), nullable=False),
        sa.Column("made", sa.BigInteger(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.SmallInteger(), nullable=False),
        sa.Column("sent", sa.BigInteger(), nullable=True),
        sa.Column("trouble", sa.String(length=16), nullable=True),
        sa.Column("status", sa.SmallInteger(), nullable=True),
        sa.PrimaryKeyConstraint("message_id", name="pk_messages"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_messages_due", "messages", ["due"])
    op.create_index("ix_messages_of_run", "messages", ["of_run"])


def downgrade() -> None:
    for table in ("mutes", "messages", "alerts"):
        op.drop_table(table)
    for column in ("alerts_due", "firing"):
        op.drop_column("runs", column)
