"""What became of records on their way: what was thinned or may be lost, who went on beside a later start, what was
not restored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_COUNTED = {"runs": ("thinned", "rivals", "forgotten"), "attempts": ("heard",)}


def upgrade() -> None:
    for table, names in _COUNTED.items():
        for name in names:
            op.add_column(
                table, sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
            )
    op.add_column("runs", sa.Column("window_ms", sa.BigInteger(), nullable=True))
    op.add_column("runs", sa.Column("window_why", sa.Text(), nullable=True))
    op.add_column(
        "attempts", sa.Column("rival", sa.SmallInteger(), nullable=False, server_default="0")
    )
    op.create_index("ix_events_run_id_kind", "events", ["run_id", "kind"])


def downgrade() -> None:
    op.drop_index("ix_events_run_id_kind", "events")
    op.drop_column("attempts", "rival")
    for name in ("window_why", "window_ms"):
        op.drop_column("runs", name)
    for table, names in _COUNTED.items():
        for name in reversed(names):
            op.drop_column(table, name)
