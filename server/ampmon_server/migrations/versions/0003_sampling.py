"""How often each run is sampled, and whether that keeps to its budget."""

from __future__ import annotations


revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
