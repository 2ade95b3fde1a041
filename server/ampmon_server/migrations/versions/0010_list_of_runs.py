"""The list of runs is counted, and passed over, by its indices alone."""

from __future__ import annotations

from alembic import op


revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_KEYS = (("started", "run_id"), ("project", "started"))
_ADDED = ("deleted", "archived")


def upgrade() -> None:
    for key in _KEYS:
        op.drop_index(_named(key), "runs")
        op.create_index(_named(key + _ADDED), "runs", [*key, *_ADDED])


def downgrade() -> None:
    for key in _KEYS:
        op.drop_index(_named(key + _ADDED), "runs")
        op.create_index(_named(key), "runs", [*key])


def _named(columns: tuple[str, ...]) -> str:
    return "_".join(("ix_runs", *columns))
