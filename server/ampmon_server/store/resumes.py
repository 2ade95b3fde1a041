"""What became of a scaler's scale where a run was resumed: an event of the server's own at an attempt's first update.

It stands under the seq of that update, which no other event has, so that it is there once however often it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from sqlalchemy import Connection, select

from ampmon import wire
from ampmon_server.series import Forgotten
from ampmon_server.store.attempts import Attempt
from ampmon_server.store.engine import fetch, insert_rows
from ampmon_server.store.rows import Rows
from ampmon_server.store.scalers import Scaler
from ampmon_server.tables import events, updates


KIND = "resume"


def note(connection: Connection, rows: Rows, first: wire.Update) -> bool:
    """Keep how an attempt's scaler began at its first update; whether it forgot the scale of the step before.

    What came of the step before is what is held of it now: records of it that come later change no word.
    """
    before = _scale_before(connection, rows)
    told = {"restored": not first.fresh, "scale_before": before, "scale": first.scale}
    event = wire.Event(
        stream=first.stream,
        seq=first.seq,
        time=first.time,
        kind=KIND,
        ordinal=first.ordinal,
        detail=told,
    )
    insert_rows(connection, events, [rows.event(event, 0)])
    return _forgotten(told)


def _scale_before(connection: Connection, rows: Rows) -> float | None:
    """The scale that the step before an attempt left; None where there is none, or none that is a number."""
    table = updates.c
    found: float | None = connection.scalar(
        select(table.scale_after)
        .where(
            table.run_id == rows.run_id,
            table.stream == rows.stream.number,
            table.step == rows.attempt.origin - 1,
            table.attempt < rows.attempt.number,
        )
        .order_by(table.attempt.desc())
        .limit(1)
    )
    return found


def _forgotten(told: Mapping[str, object]) -> bool:
    before = told["scale_before"]
    return not told["restored"] and before is not None and before != told["scale"]


def forgotten(connection: Connection, scaler: Scaler) -> tuple[Forgotten, ...]:
    """The starts of a scaler that forgot its scale, each step once, in order."""
    table = events.c
    rows = fetch(
        connection,
        select(table.step, table.time, table.detail).where(
            table.run_id == scaler.run_id,
            table.kind == KIND,
            table.stream.in_([source.number for source in scaler.sources]),
        ),
    )
    found = {}
    for step, time, detail in rows:
        told = orjson.loads(detail)
        if _forgotten(told):
            found[step] = Forgotten(step, time, told["scale_before"], told["scale"])
    return tuple(found[step] for step in sorted(found))


def is_first(attempt: Attempt, update: wire.Update) -> bool:
    """Whether an update is the first of a start that is not its rank's first."""
    return attempt.number > 0 and update.ordinal == 0
