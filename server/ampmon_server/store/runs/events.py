"""Reads the events of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Connection, Row, Select, select

from ampmon_server.model.case import RunEvent
from ampmon_server.store.engine import paging
from ampmon_server.store.engine.paging import Paged
from ampmon_server.store.runs import runs
from ampmon_server.store.schema.tables import events, streams


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
    runs.find(connection, run_id)
    statement = _of(run_id.bytes)
    if stream is not None:
        statement = statement.where(events.c.stream == stream)
    rows, following = paging.newest(connection, statement, _KEY, limit=limit, cursor=cursor)
    return Paged([_happening(row) for row in rows], following)


def newest(
    connection: Connection, run_id: UUID, limit: int, always: Collection[str]
) -> list[RunEvent]:
    """Return the newest ``limit`` events and the newest ``limit`` of the kinds ``always``, together newest first."""
    of_kind = _of(run_id.bytes).where(events.c.kind.in_(always))
    found: dict[tuple[int, ...], RunEvent] = {}
    for statement in (_of(run_id.bytes), of_kind):
        rows, _ = paging.newest(connection, statement, _KEY, limit=limit, cursor=None)
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
        orjson.loads(row.detail),
    )
