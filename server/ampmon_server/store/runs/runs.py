"""Reads and changes a run: summary, identity, edits by users, and deletion. The run's length does not matter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import orjson
from sqlalchemy import Connection, Row, bindparam, select

from ampmon import wire
from ampmon_server.alerting.messages import Subject
from ampmon_server.model.words import scale_words
from ampmon_server.store.alerts import mutes, outbox
from ampmon_server.store.engine.engine import now_us
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.engine.numbers import KINDS, decode_object, decode_texts
from ampmon_server.store.engine.rows import fetch, named
from ampmon_server.store.schema.tables import attempts, headers, runs, streams
from ampmon_server.store.streams.attempts import GONE
from ampmon_server.store.streams.state import Advance, find, move_on


NOT_MEASURABLE = "its script does not call ampmon.measure_on_request(), or has several ranks"

Status = Literal["running", "finished", "crashed", "silent"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a list shows of a run. Rates and fractions are 0..1, times microseconds since the epoch, elapsed seconds.

    ``verdict`` and ``severity`` come from the last judgement, null if the run was never judged. ``firing`` counts its
    firing alerts that nobody has acknowledged.
    """

    run_id: str
    project: str
    name: str
    owner: str
    tags: list[str]
    archived: bool
    status: Status
    started: int
    elapsed: float | None
    last_time: int | None
    last_step: int | None
    updates: int
    skipped: int
    effective_updates: int
    skip_rate: float | None
    sampled_updates: int
    scale: float | None
    scale_kind: str | None
    scale_words: str
    zero_fraction: float | None
    subnormal_fraction: float | None
    zero_fraction_error: float | None
    subnormal_fraction_error: float | None
    headroom_bits: float | None
    headroom_bits_kind: str | None
    parameters: int
    exact: bool
    disabled: bool
    records: int
    lost_records: int
    errors: int
    dropped: int
    thinned: int
    rivals: int
    forgotten: int
    loss_window_ms: int | None
    loss_window_why: str | None
    overhead: float | None
    sampling_interval: int | None
    budget: float | None
    over_budget: bool
    ranks: int
    attempts: int
    streams: list[dict[str, Any]]
    verdict: str | None
    severity: str | None
    firing: int
    version: int


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of a run by a user. None leaves a value as it is."""

    name: wire.Label | None = None
    tags: Annotated[tuple[wire.Label, ...], msgspec.Meta(max_length=64)] | None = None
    archived: bool | None = None


def read_one(connection: Connection, run_id: UUID) -> Summary:
    """Return the summary of a run. Raises NotFound."""
    row = find(connection, run_id)
    return summary(row, read_streams(connection, [row.run_id])[row.run_id], now_us())


def subject(connection: Connection, run_id: UUID) -> Subject:
    """Return the project, name and owner of a run. Raises NotFound."""
    row = find(connection, run_id, runs.c.project, runs.c.name, runs.c.owner)
    return outbox.subject_of(run_id.bytes, row)


def status_of(row: Any, now: int) -> Status:
    """Return the status of a run at ``now``, in us since the epoch."""
    silent = row.state == "running" and row.silent_after < now
    status: Status = "silent" if silent else row.state
    return status


_AS_STORED = {field.name for field in fields(Summary)} & set(runs.c.keys())
"""Columns with the name of a summary's field. Some of their values are converted."""


_STREAMS = (
    select(streams.c.run_id, streams.c.stream, streams.c.rank, streams.c.scaler, headers.c.layout)
    .outerjoin_from(
        streams,
        headers,
        # A stream that was never sharded has one layout, so its headers are not read.
        (headers.c.run_id == streams.c.run_id)
        & (headers.c.stream == streams.c.stream)
        & (headers.c.attempt == streams.c.newest_attempt)
        & (streams.c.layout == "sharded"),
    )
    .where(streams.c.run_id.in_(bindparam("of", expanding=True)), streams.c.scaler != "")
    .order_by(streams.c.run_id, streams.c.stream)
)


def read_streams(
    connection: Connection, run_ids: Sequence[bytes]
) -> dict[bytes, list[dict[str, Any]]]:
    """Return by run its streams in order of their numbers, each with the layout of its newest header."""
    found: dict[bytes, list[dict[str, Any]]] = {run_id: [] for run_id in run_ids}
    for run_id, stream, rank, scaler, layout in fetch(connection, _STREAMS, {"of": run_ids}):
        entry = {"stream": str(stream), "rank": rank, "scaler": scaler}
        found[run_id].append(entry | {"layout": layout or "replicated"})
    return found


def summary(row: Any, listed: list[dict[str, Any]], now: int) -> Summary:
    """Return the summary of a run at ``now``, in us since the epoch, from `SUMMARY_COLUMNS` and its streams."""
    scalers = len({entry["scaler"] for entry in listed})
    values = {name: getattr(row, name) for name in _AS_STORED}
    values.update(
        run_id=str(UUID(bytes=row.run_id)),
        tags=decode_texts(row.tags),
        archived=bool(row.archived),
        status=status_of(row, now),
        elapsed=None if row.last_time is None else max(row.last_time - row.started, 0) / 1e6,
        effective_updates=row.updates - row.skipped,
        skip_rate=row.skipped / row.updates if row.updates else None,
        sampled_updates=row.sampled,
        scale_kind=KINDS[row.scale_kind],
        scale_words=scale_words(row.scale, KINDS[row.scale_kind]),
        headroom_bits_kind=KINDS[row.headroom_kind],
        exact=bool(row.exact),
        disabled=bool(row.disabled),
        lost_records=row.lost,
        loss_window_ms=row.window_ms,
        loss_window_why=row.window_why,
        # Each scaler of a process reports the time between its updates, so the sum counts that time once per scaler.
        overhead=row.cost_us * scalers / row.duration_us if row.duration_us else None,
        over_budget=bool(row.over_budget),
        streams=listed,
    )
    return Summary(**values)


@dataclass(frozen=True, slots=True)
class Identity:
    """The process starts of a run, what each scaler reported about itself, and the newest configuration."""

    attempts: list[dict[str, Any]]
    scalers: list[dict[str, Any]]
    config: dict[str, Any]


def identity(connection: Connection, run_id: UUID) -> Identity:
    header = headers.c
    starts = named(
        connection,
        select(attempts)
        .where(attempts.c.run_id == run_id.bytes)
        .order_by(attempts.c.rank, attempts.c.attempt),
    )
    scalers = named(
        connection,
        select(
            header.stream,
            header.attempt,
            header.scaler_type.label("type"),
            header.device,
            header.enabled,
            header.sample,
            header.parameter_count.label("parameters"),
            header.settings,
        )
        .where(header.run_id == run_id.bytes)
        .order_by(header.stream, header.attempt),
    )
    lowest = [start for start in starts if start.rank == starts[0].rank]
    return Identity(
        list(map(_start, starts)),
        list(map(_header, scalers)),
        decode_object(lowest[-1].config) if lowest else {},
    )


def _start(row: Row[Any]) -> dict[str, Any]:
    listed = _listed(row)
    for name in ("run_id", "config", "heard"):
        del listed[name]
    return listed | {
        "attempt_id": str(UUID(bytes=row.attempt_id)),
        "origin_assumed": bool(row.origin_assumed),
        "ended": "crashed" if row.ended == GONE else row.ended,
        "versions": decode_object(row.versions),
        "rival": bool(row.rival),
    }


def _header(row: Row[Any]) -> dict[str, Any]:
    listed = _listed(row) | {"stream": str(row.stream), "enabled": bool(row.enabled)}
    return listed | decode_object(listed.pop("settings"))


def _listed(row: Row[Any]) -> dict[str, Any]:
    """A row by column. JSON needs plain text for keys, not SQLAlchemy's subclass."""
    return {str(name): value for name, value in row._mapping.items()}


def read_versions(
    connection: Connection,
    run_ids: list[UUID] | None = None,
    limit: int = 1000,
    within: Collection[str] | None = None,
) -> list[Advance]:
    """Return the version and last step of ``run_ids``, or of the newest ``limit`` runs.

    ``within`` limits them to some projects; None is all.
    """
    table = runs.c
    statement = select(table.run_id, table.version, table.last_step).where(table.deleted == 0)
    if run_ids is not None:
        statement = statement.where(table.run_id.in_([run_id.bytes for run_id in run_ids]))
    if within is not None:
        statement = statement.where(table.project.in_(within))
    rows = connection.execute(statement.order_by(table.started.desc()).limit(limit))
    return [Advance(UUID(bytes=run_id), version, step) for run_id, version, step in rows]


def change(connection: Connection, run_id: UUID, edit: Edit) -> Summary:
    """Apply an edit and return the new summary. Raises NotFound."""
    now, values = now_us(), msgspec.structs.asdict(edit)
    if edit.tags is not None:
        values["tags"] = orjson.dumps(edit.tags).decode()
    if edit.archived is not None:
        values["archived"] = int(edit.archived)
    if edit.archived and not find(connection, run_id, runs.c.archived, held=True).archived:
        values["alerts_due"] = now  # an archived run has no alerts
    given = {name: value for name, value in values.items() if value is not None}
    move_on(connection, run_id, now, **given)
    return read_one(connection, run_id)


def ask(connection: Connection, run_id: UUID) -> Advance:
    """Request a measurement from the trainer. Raises NotFound, also if the run cannot be measured."""
    if find(connection, run_id, runs.c.measurement, held=True).measurement is None:
        raise NotFound(f"Run {run_id} cannot be measured: {NOT_MEASURABLE}.")
    return move_on(connection, run_id, now := now_us(), measurement=now)


def mark_deleted(connection: Connection, run_id: UUID) -> Advance:
    """Delete a run and leave a tombstone, so that late records do not recreate it. Raises NotFound.

    The run's data is no longer visible, but still has to be removed: see `store.admin.prune`.
    """
    moved = move_on(
        connection,
        run_id,
        now_us(),
        deleted=1,
        firing=0,
        alerts_due=None,
        name="",
        project="",
        owner="",
        tags="[]",
        window_why=None,
        verdict=None,
        severity=None,
        findings=None,
    )
    outbox.forget(connection, run_id.bytes)
    mutes.forget(connection, run_id.bytes)
    return moved
