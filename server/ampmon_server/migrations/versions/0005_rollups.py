"""Cells that are rolled up, blocks that say how much they hold, and what other server processes ask for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BLOCKS = ("gradient_totals", "gradient_blocks", "module_blocks")
_ROLLUPS = ("rollups", "gradient_rollups", "parameter_rollups", "scalar_rollups")

_WORD = sa.String().with_variant(sa.String(collation="C"), "postgresql")

_FULL = "32"
"""Blocks that were stored before say that they are full, and so stay as they are."""


def upgrade() -> None:
    for name in _BLOCKS:
        op.add_column(
            name, sa.Column("samples", sa.BigInteger(), nullable=False, server_default=_FULL)
        )
    for name in ("rows_from", "samples_from"):
        op.add_column(
            "streams", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        )
    op.add_column("runs", sa.Column("changed", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column(
        "runs", sa.Column("rolled_up", sa.SmallInteger(), nullable=False, server_default="0")
    )
    op.create_index("ix_runs_changed", "runs", ["changed"])
    for name in _ROLLUPS:
        _create(name, sa.Column("name", _WORD, nullable=False) if "scalar" in name else None)


def _create(name: str, of: sa.Column[str] | None) -> None:
    keys = ["run_id", "stream", *([of.name] if of is not None else []), "level", "bucket"]
    op.create_table(
        name,
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        *([of] if of is not None else []),
        sa.Column("level", sa.BigInteger(), nullable=False),
        sa.Column("bucket", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name=f"fk_{name}_runs"),
        sa.PrimaryKeyConstraint(*keys, name=f"pk_{name}"),
    )


def downgrade() -> None:
    for name in reversed(_ROLLUPS):
        op.drop_table(name)
    op.drop_index("ix_runs_changed", "runs")
    for name in ("rolled_up", "changed"):
        op.drop_column("runs", name)
    for name in ("samples_from", "rows_from"):
        op.drop_column("streams", name)
    for name in _BLOCKS:
        op.drop_column(name, "samples")
