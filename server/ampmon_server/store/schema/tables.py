"""Declares the tables. Data of a run is keyed by `run_id` first, so one schema serves both a single file and a cluster.

This module contains no statements and assumes no engine. Times are microseconds since the epoch. A NaN or infinite
number is stored as null with its kind beside it (`store.engine.numbers`), because not every engine keeps NaN. `attempt`
numbers the process starts of a rank, and `stream` the pairs of rank and scaler name, both from 0 within the run.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def key_text(length: int | None = None) -> String:
    """Text that is a key or sorts like one: by code point, on every engine and in every locale."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def key(name: str, kind: type[BigInteger] | String = BigInteger) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def count(name: str) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, default=0)


def flag(name: str) -> Column[Any]:
    return Column(name, SmallInteger, nullable=False, default=0)


def real(name: str) -> Column[Any]:
    return Column(name, Double)


def of_run(name: str, *columns: Column[Any], large: bool = False) -> Table:
    run_id: Column[Any] = Column(
        "run_id", LargeBinary(16), ForeignKey("runs.run_id"), primary_key=True
    )
    # Without a rowid, SQLite stores rows in the key's B-tree and writes no second one. Large rows do not gain from it.
    return Table(name, metadata, run_id, *columns, sqlite_with_rowid=large)


BLOCK = "data", "magnitudes", "bins"
"""The packed columns of a block, the last three of its row; see `store.pages.packing.Block`."""


def of_samples(name: str, *packed: str) -> Table:
    """Blocks of consecutive samples of an attempt, with these columns of ``packed`` bytes."""
    return of_run(
        name,
        key("stream"),
        key("first_step"),
        key("attempt"),
        Column("last_step", BigInteger, nullable=False),
        # How many samples: small neighbouring blocks are packed into one.
        Column("samples", BigInteger, nullable=False),
        # Last, so that the columns before them can be read without them.
        *(Column(each, LargeBinary, nullable=False) for each in packed),
        large=True,
    )


def rolled_up(name: str, *of: Column[Any]) -> Table:
    """Pages of cells: a row holds the cells of one level under one cell of the next (`store.pages.pyramid`)."""
    return of_run(
        name,
        key("stream"),
        *of,
        key("level"),
        key("bucket"),
        Column("data", LargeBinary, nullable=False),
        large=True,
    )


runs = Table(
    "runs",
    metadata,
    Column("run_id", LargeBinary(16), primary_key=True),
    Column("project", key_text(256), nullable=False),
    Column("name", String(256), nullable=False),
    Column("owner", String(256), nullable=False),
    Column("tags", Text, nullable=False),
    Column("started", BigInteger, nullable=False),
    flag("archived"),
    flag("deleted"),
    # running, finished or crashed. A run in state `running` without new data by `silent_after` is silent.
    Column("state", String(16), nullable=False, default="running"),
    count("silent_after"),
    count("version"),
    # Totals: distinct steps of each scaler, regardless of the number of ranks; see store.updates.updates.
    *map(count, ("updates", "skipped", "sampled")),
    # Records stored, records known to be missing, and errors and drops that the monitor reported.
    *map(count, ("records", "lost", "errors", "dropped")),
    flag("disabled"),
    Column("exact", SmallInteger, nullable=False, default=1),
    *map(count, ("parameters", "ranks", "attempts")),
    Column("last_step", BigInteger),
    Column("last_time", BigInteger),
    real("scale"),
    flag("scale_kind"),
    *map(real, ("zero_fraction", "subnormal_fraction")),
    *map(real, ("zero_fraction_error", "subnormal_fraction_error")),
    real("headroom_bits"),
    flag("headroom_kind"),
    # Updates between samples, the share of time that sampling may take, and whether even the lowest rate exceeds it.
    Column("sampling_interval", BigInteger),
    real("budget"),
    flag("over_budget"),
    # Microseconds: a typical update's duration, and sums over the updates that have a duration.
    Column("update_us", Double, nullable=False, default=0.0),
    Column("duration_us", Double, nullable=False, default=0.0),
    Column("cost_us", Double, nullable=False, default=0.0),
    # When `version` last changed, by the server's clock. Other server processes query it.
    count("changed"),
    # Samples dropped from updates that were kept; attempts that ran beside a later one; resumes that lost the scale.
    *map(count, ("thinned", "rivals", "forgotten")),
    # How much a killed process may lose, in milliseconds, and why; null if records go to disk at once.
    Column("window_ms", BigInteger),
    Column("window_why", Text),
    # Skipped updates after which the learning rate was changed anyway.
    count("scheduled"),
    # The newest verdict on the run, and its findings, worst first, as JSON; null before the first one. `judged` is the
    # newest `version` that was judged.
    Column("verdict", Text),
    Column("severity", String(16)),
    Column("findings", Text),
    count("judged"),
    # Firing alerts that nobody has acknowledged. `alerts_due` is when to evaluate the run even if no data arrives,
    # because a pending alert may fire, or the run has ended or was archived; else null.
    count("firing"),
    Column("alerts_due", BigInteger),
    # When a still pending measurement was requested; 0 if none is pending, null if the script allows none.
    Column("measurement", BigInteger),
    sqlite_with_rowid=False,
)
# Include the flags that hide a run from the list, so that counting and skipping runs reads no rows.
Index(None, runs.c.started, runs.c.run_id, runs.c.deleted, runs.c.archived)
Index(None, runs.c.project, runs.c.started, runs.c.deleted, runs.c.archived)
Index(None, runs.c.changed)

attempts = of_run(
    "attempts",
    key("rank"),
    key("attempt"),
    Column("attempt_id", LargeBinary(16), nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("origin", BigInteger, nullable=False),
    flag("origin_assumed"),
    # finished or crashed, or what a sender guesses: see `store.streams.attempts.GONE`.
    Column("ended", String(16)),
    Column("ended_time", BigInteger),
    Column("host", String(256), nullable=False),
    count("pid"),
    Column("boot_id", String(64), nullable=False),
    count("world_size"),
    Column("git_commit", String(64), nullable=False),
    Column("versions", Text, nullable=False),
    Column("config", Text, nullable=False),
    # When the server first received it, by the server's clock; whether it went on long after a later attempt began.
    count("heard"),
    flag("rival"),
)
Index(None, attempts.c.run_id, attempts.c.attempt_id, unique=True)

streams = of_run(
    "streams",
    key("stream"),
    Column("rank", BigInteger, nullable=False),
    Column("scaler", String(128), nullable=False),
    # "sharded" if it was so in any attempt.
    Column("layout", String(16), nullable=False),
    *map(count, ("updates", "sampled")),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    # The first steps whose rows and samples are still kept. Earlier ones are rolled up and pruned.
    *map(count, ("rows_from", "samples_from")),
    # The newest attempt that has a header of it.
    count("newest_attempt"),
)

# What a scaler reported about itself in each attempt: a resumed one may have other parameters.
headers = of_run(
    "headers",
    key("stream"),
    key("attempt"),
    Column("scaler_type", String(256), nullable=False),
    Column("device", String(256), nullable=False),
    flag("enabled"),
    Column("layout", String(16), nullable=False),
    Column("sample", BigInteger),
    Column("settings", Text, nullable=False),
    count("parameter_count"),
    Column("parameters", LargeBinary, nullable=False),
    # The modules of its model; null if activations are not measured.
    Column("modules", LargeBinary),
    large=True,
)

ledger = of_run(
    "ledger",
    key("stream"),
    key("attempt"),
    key("first_seq"),
    Column("last_seq", BigInteger, nullable=False),
    # The steps of its updates; null if it has none. No update between them is missing, so every step between was done.
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
)

# The updates of 256 consecutive steps, packed: see store.pages and store.updates. The other columns are for SQL. They
# count only the latest attempt's row of each step; a non-finite scale is null.
update_pages = of_run(
    "update_pages",
    key("stream"),
    key("bucket"),
    *map(count, ("updates", "skipped", "sampled")),
    *map(count, ("first_step", "last_step", "first_time", "last_time")),
    *map(real, ("scale", "scale_after", "scale_min", "scale_max")),
    # How many updates have a duration, and the sum of these durations in microseconds.
    count("timed"),
    real("duration_us"),
    # Last, so that the columns before it can be read without it.
    Column("data", LargeBinary, nullable=False),
    large=True,
)

# The updates that were not steady: the scale changed, or an optimizer skipped.
moves = of_run(
    "moves",
    key("stream"),
    key("step"),
    key("attempt"),
    Column("time", BigInteger, nullable=False),
    flag("event"),
    flag("skipped"),
    *map(real, ("scale", "scale_after")),
    # Kinds of both scales, two bits each.
    flag("kinds"),
)

skips = of_run(
    "skips",
    key("step"),
    key("stream"),
    key("attempt"),
    key("optimizer"),
    Column("time", BigInteger, nullable=False),
    Column("name", String(256), nullable=False),
    Column("path", String(16), nullable=False),
    Column("cause", String(16), nullable=False),
    *map(real, ("scale", "scale_after")),
    flag("kinds"),
    Column("culprits", Text, nullable=False),
    Column("culprit_order", String(16), nullable=False),
    count("culprit_parameters"),
    # Where the overflow began, and in which module of the header; null if unknown.
    Column("origin", String(16)),
    Column("origin_module", BigInteger),
    # Whether the loss passed to `scale()` was finite, and its product with the scale; null if unknown.
    Column("loss", String(16)),
)

events = of_run(
    "events",
    key("stream"),
    key("attempt"),
    key("seq"),
    Column("time", BigInteger, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("step", BigInteger),
    Column("detail", Text, nullable=False),
)
Index(None, events.c.run_id, events.c.time)
Index(None, events.c.run_id, events.c.kind)

# The values logged under a name in 256 consecutive steps, packed likewise: see store.updates.scalars.
scalar_pages = of_run(
    "scalar_pages",
    key("stream"),
    key("name", key_text()),
    key("bucket"),
    *map(count, ("logged", "not_finite", "first_step", "last_step", "first_time", "last_time")),
    *map(real, ("value_first", "value_last", "value_min", "value_max", "value_mean")),
    # Last, so that the columns before it can be read without it.
    Column("data", LargeBinary, nullable=False),
    large=True,
)

# Consecutive samples of an attempt. The sums over parameters, which figures read, are packed apart from the statistics
# of each parameter. Of these, few charts read magnitudes, and fewer the histograms.
gradient_blocks = of_samples("gradient_blocks", "totals", *BLOCK)

# The same for activations, by module.
module_blocks = of_samples("module_blocks", *BLOCK)

# Cells of a scaler are stored under its lowest stream number, cells of parameters under each rank's own stream.
rollups = rolled_up("rollups")
gradient_rollups = rolled_up("gradient_rollups")
parameter_rollups = rolled_up("parameter_rollups")
scalar_rollups = rolled_up("scalar_rollups", key("name", key_text()))

# The alert of each rule that found something worth one; see `alerting.machine`.
alerts = of_run(
    "alerts",
    key("rule", key_text(64)),
    Column("state", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("fired", BigInteger),
    Column("resolved", BigInteger),
    Column("told", BigInteger),
    Column("acknowledged", BigInteger),
    Column("acknowledged_by", String(256)),
    # The part of the finding that is shown, as JSON.
    Column("found", Text, nullable=False),
)

# What a destination holds of a run: all of its ``version``, or else what ``ranges`` and ``position`` describe; see
# store.forwarding and the destination.
forwarded = of_run(
    "forwarded",
    key("destination", key_text()),
    count("version"),
    Column("ranges", Text, nullable=False),
    Column("position", Text, nullable=False),
)
