"""Create every table of `ampmon_server.store.schema.tables`, and views for people.

No older schema was released. Until the first release, a commit that alters a table gives this revision the next number,
so that a database of an earlier commit is recognized. The first revision after it must state its own changes, and
replace the declarations used here by fixed statements.

The views `v_runs`, `v_stretches`, `v_moves`, `v_skips` and `v_scalars` show ids as text and codes as words. A revision
that alters a table that they read must drop them first and create them again: SQLite cannot rename such a table.
"""

from __future__ import annotations

from alembic import op

from ampmon_server.store.schema.tables import metadata


revision = "0015"
down_revision = None
branch_labels = None
depends_on = None

_EVENTS = ("steady", "grow", "grow_capped", "backoff", "manual_set", "dead")
_KINDS = ("nan", "inf", "-inf")


def upgrade() -> None:
    metadata.create_all(op.get_bind())
    words = _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL
    for name, query in _views(*words).items():
        op.execute(f"CREATE VIEW {name} AS {query}")


def _views(run_id: str, time: str, now: str) -> dict[str, str]:
    return {
        "v_runs": f"""
        SELECT {run_id} AS run_id, r.project, r.name, r.owner, r.tags, r.archived = 1 AS archived,
            CASE WHEN r.state = 'running' AND r.silent_after < {now} THEN 'silent' ELSE r.state END AS status,
            {_at(time, "r.started")} AS started, {_at(time, "r.last_time")} AS last_time, r.last_step,
            r.updates, r.skipped, r.updates - r.skipped AS effective_updates,
            CAST(r.skipped AS double precision) / NULLIF(r.updates, 0) AS skip_rate, r.sampled AS sampled_updates,
            r.scale, {_kind("r.scale_kind")} AS scale_kind, r.zero_fraction, r.subnormal_fraction,
            r.headroom_bits, {_kind("r.headroom_kind")} AS headroom_bits_kind, r.sampling_interval,
            r.records, r.lost AS lost_records, r.errors, r.dropped, r.ranks, r.attempts
        FROM runs r WHERE r.deleted = 0""",
        "v_stretches": f"""
        SELECT {run_id} AS run_id, s.scaler, s.rank, p.first_step, p.last_step,
            {_at(time, "p.first_time")} AS first_time, {_at(time, "p.last_time")} AS last_time,
            p.updates, p.skipped, p.sampled AS sampled_updates,
            p.scale, p.scale_after, p.scale_min, p.scale_max,
            p.duration_us / NULLIF(p.timed, 0) AS duration_us
        {_of("update_pages", "p")}""",
        "v_moves": f"""
        SELECT {run_id} AS run_id, s.scaler, s.rank, m.step, m.attempt, {_at(time, "m.time")} AS time,
            m.scale, {_kind("m.kinds & 3")} AS scale_kind,
            m.scale_after, {_kind("m.kinds >> 2")} AS scale_after_kind,
            {_event("m.event")} AS event, m.skipped = 1 AS skipped
        {_of("moves", "m")} AND {_newest("m")}""",
        "v_skips": f"""
        SELECT {run_id} AS run_id, s.scaler, s.rank, k.step, k.attempt, {_at(time, "k.time")} AS time,
            k.name AS optimizer, k.path, k.cause,
            k.scale, {_kind("k.kinds & 3")} AS scale_kind,
            k.scale_after, {_kind("k.kinds >> 2")} AS scale_after_kind,
            k.culprits, k.culprit_order, k.culprit_parameters, k.origin, k.loss
        {_of("skips", "k")} AND {_newest("k")}""",
        "v_scalars": f"""
        SELECT {run_id} AS run_id, s.scaler, s.rank, c.name, c.first_step, c.last_step,
            {_at(time, "c.first_time")} AS first_time, {_at(time, "c.last_time")} AS last_time,
            c.logged, c.not_finite, c.value_first, c.value_last, c.value_min, c.value_max, c.value_mean
        {_of("scalar_pages", "c")}""",
    }


def _of(table: str, name: str) -> str:
    """FROM and WHERE for the rows of a table, without deleted runs."""
    # The run's id as text comes from its row in `runs`, and CROSS makes SQLite join in this order. So a query about one
    # run looks its rows up by key.
    return f"""FROM runs r CROSS JOIN streams s CROSS JOIN {table} {name}
        WHERE r.deleted = 0 AND s.run_id = r.run_id
            AND {name}.run_id = s.run_id AND {name}.stream = s.stream"""


def _newest(name: str) -> str:
    """The condition that no later attempt has repeated the step."""
    return f"""NOT EXISTS (SELECT 1 FROM ledger later WHERE later.run_id = {name}.run_id
                AND later.stream = {name}.stream AND later.attempt > {name}.attempt
                AND {name}.step BETWEEN later.first_step AND later.last_step)"""


def _at(time: str, column: str) -> str:
    return time.replace("?", column)


def _kind(code: str) -> str:
    whens = " ".join(f"WHEN {place} THEN '{kind}'" for place, kind in enumerate(_KINDS, 1))
    return f"CASE {code} {whens} END"


def _event(code: str) -> str:
    whens = " ".join(f"WHEN {place} THEN '{event}'" for place, event in enumerate(_EVENTS))
    return f"CASE {code} {whens} END"


_HEX = "lower(hex(r.run_id))"
_SQLITE = (
    " || '-' || ".join(
        f"substr({_HEX}, {start}, {size})"
        for start, size in ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    ),
    "strftime('%Y-%m-%dT%H:%M:%S', ? / 1000000, 'unixepoch') || printf('.%06dZ', ? % 1000000)",
    "CAST(strftime('%s', 'now') AS INTEGER) * 1000000",
)
_POSTGRESQL = (
    "CAST(CAST(encode(r.run_id, 'hex') AS uuid) AS text)",
    "TIMESTAMPTZ 'epoch' + ? * INTERVAL '1 microsecond'",
    "EXTRACT(EPOCH FROM clock_timestamp()) * 1000000",
)
"""SQL for a run's id as text, for a time given in microseconds, and for the current time in microseconds."""
