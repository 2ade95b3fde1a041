"""Drop the list of streams from `runs`, which each batch rewrote. It is read from `streams` and `headers`.

A new database never has this column, because the first revision creates what is declared now.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import inspect


revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if any(column["name"] == "streams" for column in inspect(op.get_bind()).get_columns("runs")):
        op.execute("ALTER TABLE runs DROP COLUMN streams")
