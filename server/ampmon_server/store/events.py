"""Reads events: what happened beside the updates."""

from __future__ import annotations

from uuid import UUID

import orjson
from sqlalchemy import Connection, select

from ampmon_server.case import Happening
from ampmon_server.store import paging
from ampmon_server.store.paging import Paged
from ampmon_server.tables import events, streams


def read(
    connection: Connection, run_id: UUID, *, stream: int | None, limit: int, cursor: str | None
) -> Paged[Happening]:
    """Events, newest first. Raises BadQuery for a foreign cursor."""
    table = events.c
    key = (table.time, table.stream, table.attempt, table.seq)
    statement = (
        select(events, streams.c.rank, streams.c.scaler)
        .join(streams, (streams.c.run_id == table.run_id) & (streams.c.stream == table.stream))
        .where(table.run_id == run_id.bytes)
    )
    if stream is not None:
        statement = statement.where(table.stream == stream)
    rows, following = paging.newest(connection, statement, key, limit=limit, cursor=cursor)
    return Paged(
        [
            Happening(
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
            for row in rows
        ],
        following,
    )
