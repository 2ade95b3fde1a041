"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _runs()
    _attempts()
    _events()
    _gradient_blocks()
    _gradient_totals()
    _headers()
    _ledger()
    _scalars()
    _skips()
    _streams()
    _updates()


def _word(length: int | None = None) -> sa.String:
    """Text that is a key; PostgreSQL, which came after this revision, would order it by a language's rules."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("project", _word(256), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("owner", sa.String(length=256), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("started", sa.BigInteger(), nullable=False),
        sa.Column("archived", sa.SmallInteger(), nullable=False),
        sa.Column("deleted", sa.SmallInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("silent_after", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("updates", sa.BigInteger(), nullable=False),
        sa.Column("skipped", sa.BigInteger(), nullable=False),
        sa.Column("sampled", sa.BigInteger(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("lost", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.BigInteger(), nullable=False),
        sa.Column("disabled", sa.SmallInteger(), nullable=False),
        sa.Column("exact", sa.SmallInteger(), nullable=False),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("ranks", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("streams", sa.Text(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("last_time", sa.BigInteger(), nullable=True),
        sa.Column("scale", sa.Double(), nullable=True),
        sa.Column("scale_kind", sa.SmallInteger(), nullable=False),
        sa.Column("zero_fraction", sa.Double(), nullable=True),
        sa.Column("subnormal_fraction", sa.Double(), nullable=True),
        sa.Column("headroom_bits", sa.Double(), nullable=True),
        sa.Column("headroom_kind", sa.SmallInteger(), nullable=False),
        sa.Column("update_us", sa.Double(), nullable=False),
        sa.Column("duration_us", sa.Double(), nullable=False),
        sa.Column("cost_us", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_runs_project_started", "runs", ["project", "started"], unique=False)
    op.create_index("ix_runs_started_run_id", "runs", ["started", "run_id"], unique=False)


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("attempt_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("started", sa.BigInteger(), nullable=False),
        sa.Column("origin", sa.BigInteger(), nullable=False),
        sa.Column("origin_assumed", sa.SmallInteger(), nullable=False),
        sa.Column("ended", sa.String(length=16), nullable=True),
        sa.Column("ended_time", sa.BigInteger(), nullable=True),
        sa.Column("host", sa.String(length=256), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("world_size", sa.BigInteger(), nullable=False),
        sa.Column("git_commit", sa.String(length=64), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_attempts_runs"),
        sa.PrimaryKeyConstraint("run_id", "rank", "attempt", name="pk_attempts"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_attempts_run_id_attempt_id", "attempts", ["run_id", "attempt_id"], unique=True
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_events_runs"),
        sa.PrimaryKeyConstraint("run_id", "stream", "attempt", "seq", name="pk_events"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_events_run_id_time", "events", ["run_id", "time"], unique=False)


def _gradient_blocks() -> None:
    op.create_table(
        "gradient_blocks",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_gradient_blocks_runs"),
        sa.PrimaryKeyConstraint(
            "run_id", "stream", "first_step", "attempt", name="pk_gradient_blocks"
        ),
        sqlite_with_rowid=True,
    )


def _gradient_totals() -> None:
    op.create_table(
        "gradient_totals",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_gradient_totals_runs"),
        sa.PrimaryKeyConstraint(
            "run_id", "stream", "first_step", "attempt", name="pk_gradient_totals"
        ),
        sqlite_with_rowid=False,
    )


def _headers() -> None:
    op.create_table(
        "headers",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("scaler_type", sa.String(length=256), nullable=False),
        sa.Column("device", sa.String(length=256), nullable=False),
        sa.Column("enabled", sa.SmallInteger(), nullable=False),
        sa.Column("sample", sa.BigInteger(), nullable=True),
        sa.Column("exact", sa.SmallInteger(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("parameter_count", sa.BigInteger(), nullable=False),
        sa.Column("parameters", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_headers_runs"),
        sa.PrimaryKeyConstraint("run_id", "stream", "attempt", name="pk_headers"),
        sqlite_with_rowid=True,
    )


def _ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_ledger_runs"),
        sa.PrimaryKeyConstraint("run_id", "stream", "attempt", "first_seq", name="pk_ledger"),
        sqlite_with_rowid=False,
    )


def _scalars() -> None:
    op.create_table(
        "scalars",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("name", _word(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("user_step", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_scalars_runs"),
        sa.PrimaryKeyConstraint("run_id", "stream", "name", "step", "attempt", name="pk_scalars"),
        sqlite_with_rowid=False,
    )


def _skips() -> None:
    op.create_table(
        "skips",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("optimizer", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("path", sa.String(length=16), nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("scale", sa.Double(), nullable=True),
        sa.Column("scale_after", sa.Double(), nullable=True),
        sa.Column("kinds", sa.SmallInteger(), nullable=False),
        sa.Column("culprits", sa.Text(), nullable=False),
        sa.Column("culprit_order", sa.String(length=16), nullable=False),
        sa.Column("culprit_parameters", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_skips_runs"),
        sa.PrimaryKeyConstraint(
            "run_id", "step", "stream", "attempt", "optimizer", name="pk_skips"
        ),
        sqlite_with_rowid=False,
    )


def _streams() -> None:
    op.create_table(
        "streams",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("rank", sa.BigInteger(), nullable=False),
        sa.Column("scaler", sa.String(length=128), nullable=False),
        sa.Column("layout", sa.String(length=16), nullable=False),
        sa.Column("updates", sa.BigInteger(), nullable=False),
        sa.Column("sampled", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("newest_sample", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_streams_runs"),
        sa.PrimaryKeyConstraint("run_id", "stream", name="pk_streams"),
        sqlite_with_rowid=False,
    )


def _updates() -> None:
    op.create_table(
        "updates",
        sa.Column("run_id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("stream", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("scale", sa.Double(), nullable=True),
        sa.Column("scale_after", sa.Double(), nullable=True),
        sa.Column("kinds", sa.SmallInteger(), nullable=False),
        sa.Column("growth_tracker", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.SmallInteger(), nullable=False),
        sa.Column("skipped", sa.SmallInteger(), nullable=False),
        sa.Column("sampled", sa.SmallInteger(), nullable=False),
        sa.Column("paths", sa.SmallInteger(), nullable=False),
        sa.Column("duration_ns", sa.BigInteger(), nullable=True),
        sa.Column("cost_ns", sa.BigInteger(), nullable=False),
        sa.Column("memory_peak", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.run_id"], name="fk_updates_runs"),
        sa.PrimaryKeyConstraint("run_id", "stream", "step", "attempt", name="pk_updates"),
        sqlite_with_rowid=False,
    )
