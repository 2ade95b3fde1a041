"""Reads how much a killed process of a run may lose, from what the processes last reported about their spool."""

from __future__ import annotations

from typing import TypeAlias

import orjson
from sqlalchemy import Connection, func, select

from ampmon.wire import COUNT_MAX
from ampmon_server.store.engine.rows import fetch
from ampmon_server.store.schema.tables import attempts, events, streams


KIND = "spool"
_WORDS_MAX = 500


LossWindow: TypeAlias = tuple[int | None, str | None]
"""The longest loss window of any rank, in milliseconds, and why; None if all records go to disk at once."""


def window(connection: Connection, run_id: bytes) -> LossWindow:
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
        .where(said.run_id == run_id, said.kind == KIND)
        .order_by(said.seq),
    )
    last = {rank: orjson.loads(detail) for rank, detail in rows}
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
