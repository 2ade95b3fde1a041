"""Reads the events of a run: as a list, what a kill may lose, and what a resume made of the scale.

Ingest adds the event of a resume at an attempt's first update. The event has the seq of that update, which no other
event has. So it is stored once, however often the update is sent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Connection, Row, Select, bindparam, func, select

from ampmon.wire import COUNT_MAX
from ampmon_server.model.case import RunEvent
from ampmon_server.model.series import Resume
from ampmon_server.store.engine.numbers import decode_object
from ampmon_server.store.engine.rows import Paged, fetch, newest_rows
from ampmon_server.store.schema.tables import attempts, events, runs, streams
from ampmon_server.store.streams import state
from ampmon_server.store.streams.scalers import Scaler


SPOOL, RESUME = "spool", "resume"
"""The kinds of these events."""

_KEY = (events.c.time, events.c.stream, events.c.attempt, events.c.seq)


def read(
    connection: Connection,
    run_id: UUID,
    *,
    stream: int | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Paged[RunEvent]:
    """Return a page of events, newest first. Raises NotFound."""
    state.find(connection, run_id, runs.c.run_id)
    statement = _of(run_id.bytes)
    if stream is not None:
        statement = statement.where(events.c.stream == stream)
    rows, following = newest_rows(connection, statement, _KEY, limit=limit, cursor=cursor)
    return Paged([_happening(row) for row in rows], following)


def newest(
    connection: Connection, run_id: UUID, limit: int, always: Collection[str]
) -> list[RunEvent]:
    """Return the newest ``limit`` events and the newest ``limit`` of the kinds ``always``, together newest first."""
    of_kind = _of(run_id.bytes).where(events.c.kind.in_(always))
    found: dict[tuple[int, ...], RunEvent] = {}
    for statement in (_of(run_id.bytes), of_kind):
        rows, _ = newest_rows(connection, statement, _KEY, limit=limit, cursor=None)
        found |= {(row.time, row.stream, row.attempt, row.seq): _happening(row) for row in rows}
    return [found[key] for key in sorted(found, reverse=True)]


def _of(run_id: bytes) -> Select[Any]:
    table = events.c
    return (
        select(events, streams.c.rank, streams.c.scaler)
        .join(streams, (streams.c.run_id == table.run_id) & (streams.c.stream == table.stream))
        .where(table.run_id == run_id)
    )


def _happening(row: Row[Any]) -> RunEvent:
    return RunEvent(
        row.time,
        row.kind,
        str(row.stream),
        row.rank,
        row.scaler,
        row.attempt,
        row.seq,
        row.step,
        decode_object(row.detail),
    )


# -- what a kill may lose ----------------------------------------------------------------------------------------------

_WORDS_MAX = 500


LossWindow: TypeAlias = tuple[int | None, str | None]
"""The longest loss window of any rank, in milliseconds, and why; None if all records go to disk at once."""


def loss_window(connection: Connection, run_id: bytes) -> LossWindow:
    """The loss window of a run, from the last reports of each rank's newest attempt."""
    said, start = events.c, attempts.c
    newest = (
        select(start.rank, func.max(start.attempt).label("attempt"))
        .where(start.run_id == run_id)
        .group_by(start.rank)
        .subquery()
    )
    rows = fetch(
        connection,
        select(streams.c.rank, said.detail)
        .join(streams, (streams.c.run_id == said.run_id) & (streams.c.stream == said.stream))
        .join(newest, (newest.c.rank == streams.c.rank) & (newest.c.attempt == said.attempt))
        .where(said.run_id == run_id, said.kind == SPOOL)
        .order_by(said.seq),
    )
    last = {rank: decode_object(detail) for rank, detail in rows}
    windows = [(None, None), *map(_window, last.values())]
    return max(windows, key=lambda each: -1 if each[0] is None else each[0])


def _window(detail: dict[str, object]) -> LossWindow:
    """Read an event, whose detail is free-form."""
    if detail.get("kept") != "memory":
        return None, None
    ms, why = detail.get("window_ms"), detail.get("why")
    return (
        min(max(ms, 0), COUNT_MAX) if isinstance(ms, int) else 0,
        # JSON may contain a NUL, which PostgreSQL rejects in text.
        why[:_WORDS_MAX].replace("\0", "") if isinstance(why, str) else "",
    )


# -- resumes -----------------------------------------------------------------------------------------------------------

MOST = 2000
"""The most resumes read, over all ranks."""


def resume_of(step: int, time: int, detail: Mapping[str, Any]) -> Resume:
    scale = math.nan if detail["scale"] is None else detail["scale"]
    return Resume(step, time, detail["scale_before"], scale, detail["restored"])


_NEWEST = (
    select(events.c.step, events.c.time, events.c.detail)
    .where(
        events.c.run_id == bindparam("of"),
        events.c.kind == RESUME,
        events.c.stream.in_(bindparam("numbers", expanding=True)),
    )
    .order_by(events.c.step.desc(), events.c.stream.desc())
    .limit(MOST)
)


def resumes(connection: Connection, scaler: Scaler) -> tuple[Resume, ...]:
    """The resumes of a scaler, each step once, in order; only the newest if there are more than `MOST`."""
    numbers = [source.number for source in scaler.sources]
    rows = fetch(connection, _NEWEST, {"of": scaler.run_id, "numbers": numbers})
    found = {step: resume_of(step, time, decode_object(detail)) for step, time, detail in rows}
    return tuple(found[step] for step in sorted(found))
