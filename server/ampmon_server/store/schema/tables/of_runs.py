"""What is kept of runs; see `ampmon_server.store.schema.tables`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    LargeBinary,
    String,
    Table,
    Text,
)

from ampmon_server.store.schema.tables.declaring import (
    count,
    flag,
    key,
    key_text,
    metadata,
    of_run,
    of_samples,
    real,
    rolled_up,
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
    # running, finished or crashed; a run that should have sent by `silent_after` and has not is silent.
    Column("state", String(16), nullable=False),
    count("silent_after"),
    count("version"),
    # Totals: of distinct steps of each scaler, however many ranks; see store.rollups.
    *map(count, ("updates", "skipped", "sampled")),
    # Records stored, those known to be missing, and what the monitor said of itself.
    *map(count, ("records", "lost", "errors", "dropped")),
    flag("disabled"),
    flag("exact"),
    *map(count, ("parameters", "ranks", "attempts")),
    Column("streams", Text, nullable=False),
    Column("last_step", BigInteger),
    Column("last_time", BigInteger),
    real("scale"),
    flag("scale_kind"),
    *map(real, ("zero_fraction", "subnormal_fraction")),
    *map(real, ("zero_fraction_error", "subnormal_fraction_error")),
    real("headroom_bits"),
    flag("headroom_kind"),
    # Updates between samples, the share of the time they are kept to, and whether even the rarest exceed it.
    Column("sampling_interval", BigInteger),
    real("budget"),
    flag("over_budget"),
    # Microseconds: a typical update's, and sums over the updates that have a duration.
    Column("update_us", Double, nullable=False, default=0.0),
    Column("duration_us", Double, nullable=False, default=0.0),
    Column("cost_us", Double, nullable=False, default=0.0),
    # When its version last moved on, by the server's clock: what another server process asks for.
    count("changed"),
    # Samples left out of updates that were kept; starts that went on beside a later one; scalers that began anew.
    *map(count, ("thinned", "rivals", "forgotten")),
    # How much a killed process may lose, and why; null where records go to a disk at once.
    Column("window_ms", BigInteger),
    Column("window_why", Text),
    # Skipped updates after which the learning rate was changed all the same.
    count("scheduled"),
    # What the run was last found to have, the worst first, as JSON; null where nobody has looked.
    Column("verdict", Text),
    Column("severity", String(16)),
    Column("findings", Text),
    # Alerts that fire and nobody has acknowledged; and when the run is to be looked at though nothing of it arrives, as
    # one that is pending may fire, or as it has ended; null where neither is so.
    count("firing"),
    Column("alerts_due", BigInteger),
    # When somebody asked for a measurement that is still to come; 0 if nobody has, null if the script allows none.
    Column("measurement", BigInteger),
    sqlite_with_rowid=False,
)
# With what decides whether the list shows a run, so that to count and to skip over runs no row is read.
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
    Column("ended", String(16)),
    Column("ended_time", BigInteger),
    Column("host", String(256), nullable=False),
    count("pid"),
    Column("boot_id", String(64), nullable=False),
    count("world_size"),
    Column("git_commit", String(64), nullable=False),
    Column("versions", Text, nullable=False),
    Column("config", Text, nullable=False),
    # When it was first heard of, by the server's clock; whether it went on long after a later one began.
    count("heard"),
    flag("rival"),
)
Index(None, attempts.c.run_id, attempts.c.attempt_id, unique=True)

streams = of_run(
    "streams",
    key("stream"),
    Column("rank", BigInteger, nullable=False),
    Column("scaler", String(128), nullable=False),
    Column("layout", String(16), nullable=False),
    *map(count, ("updates", "sampled")),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("newest_sample", LargeBinary),
    # The first step whose own rows are still kept: those before it are rolled up and pruned.
    *map(count, ("rows_from", "samples_from")),
)

# What a scaler said of itself: per attempt, since a resumed one may hold other parameters.
headers = of_run(
    "headers",
    key("stream"),
    key("attempt"),
    Column("scaler_type", String(256), nullable=False),
    Column("device", String(256), nullable=False),
    flag("enabled"),
    Column("sample", BigInteger),
    # Whether every element of every parameter is looked at.
    flag("exact"),
    Column("settings", Text, nullable=False),
    count("parameter_count"),
    Column("parameters", LargeBinary, nullable=False),
    # What it said of its model's modules; null where activations are not measured.
    Column("modules", LargeBinary),
    large=True,
)

ledger = of_run(
    "ledger",
    key("stream"),
    key("attempt"),
    key("first_seq"),
    Column("last_seq", BigInteger, nullable=False),
    # Of its updates; null where it has none. No update is missing between them, so each step between was done.
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
)

# The updates of 256 consecutive steps, packed: see store.pages and store.updates. What stands beside is for SQL: of
# each step the latest attempt's row counts; a scale is null where it is not finite.
update_pages = of_run(
    "update_pages",
    key("stream"),
    key("bucket"),
    *map(count, ("updates", "skipped", "sampled")),
    *map(count, ("first_step", "last_step", "first_time", "last_time")),
    *map(real, ("scale", "scale_after", "scale_min", "scale_max")),
    # How many have a duration, and the sum of those in microseconds.
    count("timed"),
    real("duration_us"),
    # Last: what stands before it is read without it.
    Column("data", LargeBinary, nullable=False),
    large=True,
)

# The updates that were not steady: where the scale moved, or an optimizer skipped.
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
    # Where the overflow began, and in which module of the header; null where not known.
    Column("origin", String(16)),
    Column("origin_module", BigInteger),
    # Whether what `scale()` was given was finite, and its product with the scale; null where not known.
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

# The values that were logged under a name in 256 consecutive steps, packed likewise: see store.scalars.
scalar_pages = of_run(
    "scalar_pages",
    key("stream"),
    key("name", key_text()),
    key("bucket"),
    *map(count, ("logged", "not_finite", "first_step", "last_step", "first_time", "last_time")),
    *map(real, ("value_first", "value_last", "value_min", "value_max", "value_mean")),
    # Last: what stands before it is read without it.
    Column("data", LargeBinary, nullable=False),
    large=True,
)

# Consecutive samples of an attempt: sums over parameters, which figures read, apart from what each parameter had.
gradient_totals = of_samples("gradient_totals", large=False)
gradient_blocks = of_samples("gradient_blocks", large=True)

# The same of activations, by module.
module_blocks = of_samples("module_blocks", large=True)

# What is rolled up of a scaler stands under the lowest of its streams' numbers; of parameters, under each rank's own.
rollups = rolled_up("rollups")
gradient_rollups = rolled_up("gradient_rollups")
parameter_rollups = rolled_up("parameter_rollups")
scalar_rollups = rolled_up("scalar_rollups", key("name", key_text()))

# One for each rule that has found something worth an alert, as `alerting.machine` has it.
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
    # What is shown of the finding, as JSON.
    Column("found", Text, nullable=False),
)

# What a destination holds of a run: all of its ``version``, or else what ``ranges`` and ``position`` say; see
# store.forwarding and the destination.
forwarded = of_run(
    "forwarded",
    key("destination", key_text()),
    count("version"),
    Column("ranges", Text, nullable=False),
    Column("position", Text, nullable=False),
)
