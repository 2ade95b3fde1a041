"""The tables: data of a run is keyed by `run_id` first, so that one schema serves one file and a cluster alike.

Knows no statement and no engine. Times are microseconds since the epoch. A number that may be NaN or infinite is null
where it is, with its kind beside it (`store.numbers`), since not every engine keeps NaN. `attempt` counts the process
starts of a rank, `stream` the pairs of rank and scaler name, both from 0 within the run.
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
    """Text that is a key, or sorts as one: by its characters' numbers, whatever the engine and the language are."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def _key(name: str, kind: type[BigInteger] | String = BigInteger) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _count(name: str) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, default=0)


def _flag(name: str) -> Column[Any]:
    return Column(name, SmallInteger, nullable=False, default=0)


def _real(name: str) -> Column[Any]:
    return Column(name, Double)


def _of_run(name: str, *columns: Column[Any], large: bool = False) -> Table:
    run_id: Column[Any] = Column(
        "run_id", LargeBinary(16), ForeignKey("runs.run_id"), primary_key=True
    )
    # Without a rowid the key is the row, and there is no second B-tree to write; it does not pay for large rows.
    return Table(name, metadata, run_id, *columns, sqlite_with_rowid=large)


def _of_samples(name: str, *, large: bool) -> Table:
    """Consecutive samples of an attempt, packed."""
    return _of_run(
        name,
        _key("stream"),
        _key("first_step"),
        _key("attempt"),
        Column("last_step", BigInteger, nullable=False),
        Column("data", LargeBinary, nullable=False),
        # How many: small neighbours are packed into one.
        Column("samples", BigInteger, nullable=False),
        large=large,
    )


def _rolled_up(name: str, *of: Column[Any]) -> Table:
    """Pages of cells: a row holds the cells of one level that lie under one cell of the next; see `store.pyramid`."""
    return _of_run(
        name,
        _key("stream"),
        *of,
        _key("level"),
        _key("bucket"),
        Column("data", LargeBinary, nullable=False),
        large=True,
    )


def _by_digest(name: str, *columns: Column[Any]) -> Table:
    digest: Column[Any] = Column("digest", LargeBinary(32), primary_key=True)
    return Table(name, metadata, digest, *columns, sqlite_with_rowid=False)


runs = Table(
    "runs",
    metadata,
    Column("run_id", LargeBinary(16), primary_key=True),
    Column("project", key_text(256), nullable=False),
    Column("name", String(256), nullable=False),
    Column("owner", String(256), nullable=False),
    Column("tags", Text, nullable=False),
    Column("started", BigInteger, nullable=False),
    _flag("archived"),
    _flag("deleted"),
    # running, finished or crashed; a run that should have sent by `silent_after` and has not is silent.
    Column("state", String(16), nullable=False),
    _count("silent_after"),
    _count("version"),
    # Totals: of distinct steps of each scaler, however many ranks; see store.rollups.
    *map(_count, ("updates", "skipped", "sampled")),
    # Records stored, those known to be missing, and what the monitor said of itself.
    *map(_count, ("records", "lost", "errors", "dropped")),
    _flag("disabled"),
    _flag("exact"),
    *map(_count, ("parameters", "ranks", "attempts")),
    Column("streams", Text, nullable=False),
    Column("last_step", BigInteger),
    Column("last_time", BigInteger),
    _real("scale"),
    _flag("scale_kind"),
    *map(_real, ("zero_fraction", "subnormal_fraction")),
    *map(_real, ("zero_fraction_error", "subnormal_fraction_error")),
    _real("headroom_bits"),
    _flag("headroom_kind"),
    # Updates between samples, the share of the time they are kept to, and whether even the rarest exceed it.
    Column("sampling_interval", BigInteger),
    _real("budget"),
    _flag("over_budget"),
    # Microseconds: a typical update's, and sums over the updates that have a duration.
    Column("update_us", Double, nullable=False, default=0.0),
    Column("duration_us", Double, nullable=False, default=0.0),
    Column("cost_us", Double, nullable=False, default=0.0),
    # When its version last moved on, by the server's clock: what another server process asks for.
    _count("changed"),
    # Samples left out of updates that were kept; starts that went on beside a later one; scalers that began anew.
    *map(_count, ("thinned", "rivals", "forgotten")),
    # How much a killed process may lose, and why; null where records go to a disk at once.
    Column("window_ms", BigInteger),
    Column("window_why", Text),
    # Skipped updates after which the learning rate was changed all the same.
    _count("scheduled"),
    # What the run was last found to have, the worst first, as JSON; null where nobody has looked.
    Column("verdict", Text),
    Column("severity", String(16)),
    Column("findings", Text),
    # Alerts that fire and nobody has acknowledged; and when the run is to be looked at though nothing of it arrives, as
    # one that is pending may fire, or as it has ended; null where neither is so.
    _count("firing"),
    Column("alerts_due", BigInteger),
    sqlite_with_rowid=False,
)
# With what tells whether the list shows a run, so that to count and to skip over runs no row is read.
Index(None, runs.c.started, runs.c.run_id, runs.c.deleted, runs.c.archived)
Index(None, runs.c.project, runs.c.started, runs.c.deleted, runs.c.archived)
Index(None, runs.c.changed)

attempts = _of_run(
    "attempts",
    _key("rank"),
    _key("attempt"),
    Column("attempt_id", LargeBinary(16), nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("origin", BigInteger, nullable=False),
    _flag("origin_assumed"),
    Column("ended", String(16)),
    Column("ended_time", BigInteger),
    Column("host", String(256), nullable=False),
    _count("pid"),
    Column("boot_id", String(64), nullable=False),
    _count("world_size"),
    Column("git_commit", String(64), nullable=False),
    Column("versions", Text, nullable=False),
    Column("config", Text, nullable=False),
    # When it was first heard of, by the server's clock; whether it went on long after a later one began.
    _count("heard"),
    _flag("rival"),
)
Index(None, attempts.c.run_id, attempts.c.attempt_id, unique=True)

streams = _of_run(
    "streams",
    _key("stream"),
    Column("rank", BigInteger, nullable=False),
    Column("scaler", String(128), nullable=False),
    Column("layout", String(16), nullable=False),
    *map(_count, ("updates", "sampled")),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("newest_sample", LargeBinary),
    # The first step whose own rows are still kept: those before it are rolled up and pruned.
    *map(_count, ("rows_from", "samples_from")),
)

# What a scaler said of itself: per attempt, since a resumed one may hold other parameters.
headers = _of_run(
    "headers",
    _key("stream"),
    _key("attempt"),
    Column("scaler_type", String(256), nullable=False),
    Column("device", String(256), nullable=False),
    _flag("enabled"),
    Column("sample", BigInteger),
    # Whether every element of every parameter is looked at.
    _flag("exact"),
    Column("settings", Text, nullable=False),
    _count("parameter_count"),
    Column("parameters", LargeBinary, nullable=False),
    # What it said of its model's modules; null where activations are not measured.
    Column("modules", LargeBinary),
    large=True,
)

ledger = _of_run(
    "ledger",
    _key("stream"),
    _key("attempt"),
    _key("first_seq"),
    Column("last_seq", BigInteger, nullable=False),
    # Of its updates; null where it has none. No update is missing between them, so each step between was done.
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
)

# The updates of 256 consecutive steps, packed: see store.pages and store.updates. What stands beside is for SQL: of
# each step the latest attempt's row counts; a scale is null where it is not finite.
update_pages = _of_run(
    "update_pages",
    _key("stream"),
    _key("bucket"),
    *map(_count, ("updates", "skipped", "sampled")),
    *map(_count, ("first_step", "last_step", "first_time", "last_time")),
    *map(_real, ("scale", "scale_after", "scale_min", "scale_max")),
    # How many have a duration, and the sum of those in microseconds.
    _count("timed"),
    _real("duration_us"),
    # Last: what stands before it is read without it.
    Column("data", LargeBinary, nullable=False),
    large=True,
)

# The updates that were not steady: where the scale moved, or an optimizer skipped.
moves = _of_run(
    "moves",
    _key("stream"),
    _key("step"),
    _key("attempt"),
    Column("time", BigInteger, nullable=False),
    _flag("event"),
    _flag("skipped"),
    *map(_real, ("scale", "scale_after")),
    # Kinds of both scales, two bits each.
    _flag("kinds"),
)

skips = _of_run(
    "skips",
    _key("step"),
    _key("stream"),
    _key("attempt"),
    _key("optimizer"),
    Column("time", BigInteger, nullable=False),
    Column("name", String(256), nullable=False),
    Column("path", String(16), nullable=False),
    Column("cause", String(16), nullable=False),
    *map(_real, ("scale", "scale_after")),
    _flag("kinds"),
    Column("culprits", Text, nullable=False),
    Column("culprit_order", String(16), nullable=False),
    _count("culprit_parameters"),
    # Where the overflow began, forward or backward, and in which module of the header; null where not known.
    Column("origin", String(16)),
    Column("origin_module", BigInteger),
)

events = _of_run(
    "events",
    _key("stream"),
    _key("attempt"),
    _key("seq"),
    Column("time", BigInteger, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("step", BigInteger),
    Column("detail", Text, nullable=False),
)
Index(None, events.c.run_id, events.c.time)
Index(None, events.c.run_id, events.c.kind)

# The values that were logged under a name in 256 consecutive steps, packed likewise: see store.scalars.
scalar_pages = _of_run(
    "scalar_pages",
    _key("stream"),
    _key("name", key_text()),
    _key("bucket"),
    *map(_count, ("logged", "not_finite", "first_step", "last_step", "first_time", "last_time")),
    *map(_real, ("value_first", "value_last", "value_min", "value_max", "value_mean")),
    # Last: what stands before it is read without it.
    Column("data", LargeBinary, nullable=False),
    large=True,
)

# Consecutive samples of an attempt: sums over parameters, which figures read, apart from what each parameter had.
gradient_totals = _of_samples("gradient_totals", large=False)
gradient_blocks = _of_samples("gradient_blocks", large=True)

# The same of activations, by module.
module_blocks = _of_samples("module_blocks", large=True)

# What is rolled up of a scaler stands under the lowest of its streams' numbers; of parameters, under each rank's own.
rollups = _rolled_up("rollups")
gradient_rollups = _rolled_up("gradient_rollups")
parameter_rollups = _rolled_up("parameter_rollups")
scalar_rollups = _rolled_up("scalar_rollups", _key("name", key_text()))

# One for each rule that has found something worth telling, as `alerting.machine` has it.
alerts = _of_run(
    "alerts",
    _key("rule", key_text(64)),
    Column("state", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("fired", BigInteger),
    Column("resolved", BigInteger),
    Column("told", BigInteger),
    Column("acknowledged", BigInteger),
    Column("acknowledged_by", String(256)),
    # What is told of the finding, as JSON.
    Column("found", Text, nullable=False),
)

# Of no run, and small: a cluster keeps a copy on every node.
# Access tokens, and the codes that bring a browser in, each by its digest.
tokens = _by_digest(
    "tokens",
    Column("name", String(64), nullable=False),
    Column("owner", String(256), nullable=False),
    # JSON: what it may do, and the projects that it opens; null for all of them.
    Column("scopes", Text, nullable=False),
    Column("projects", Text),
    Column("made", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("last_used", BigInteger),
    Column("revoked", BigInteger),
)

logins = _by_digest(
    "logins",
    Column("expires", BigInteger, nullable=False),
    # With which token it was made: `own` for the one in the data directory.
    Column("token_id", String(12), nullable=False),
)

# Sessions of browsers that were signed out, each by its digest, until they would have ended by themselves.
revoked_sessions = _by_digest(
    "revoked_sessions",
    Column("expires", BigInteger, nullable=False),
)

# Messages to targets of alerts, kept from when they are due until some days after. Who delivers one takes it by moving
# `due` on: so it is sent by one, and again where that one died. `due` is null where nothing more is to be done.
messages = Table(
    "messages",
    metadata,
    Column("message_id", LargeBinary(16), primary_key=True),
    Column("target", String(64), nullable=False),
    Column("of_run", LargeBinary(16), nullable=False),
    Column("rule", String(64), nullable=False),
    Column("made", BigInteger, nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("due", BigInteger),
    _count("attempts"),
    # Whether it was kept back because too many had been sent within an hour.
    _flag("held"),
    Column("sent", BigInteger),
    # Why the newest attempt failed: a class of trouble, and the status that was answered.
    Column("trouble", String(16)),
    Column("status", SmallInteger),
    sqlite_with_rowid=False,
)
Index(None, messages.c.due)
Index(None, messages.c.of_run)

# Of what no target is told: of one run, of a project or of all, by one rule or any; until a time or for ever.
mutes = Table(
    "mutes",
    metadata,
    Column("mute_id", LargeBinary(16), primary_key=True),
    Column("project", String(256)),
    Column("of_run", LargeBinary(16)),
    Column("rule", String(64)),
    Column("until", BigInteger),
    Column("made", BigInteger, nullable=False),
    Column("made_by", String(256), nullable=False),
    sqlite_with_rowid=False,
)
