"""Records what happened to a scaler's scale on resume, as an event that the server adds at an attempt's first update.

The event has the seq of that update, which no other event has. So it is stored once, however often the update is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, select

from ampmon import wire
from ampmon_server.model.series import Forgotten, Resume
from ampmon_server.store.engine.engine import fetch, insert_rows
from ampmon_server.store.engine.numbers import split
from ampmon_server.store.pages.pages import PAGE_BITS
from ampmon_server.store.schema.tables import events
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.rows import RowMaker
from ampmon_server.store.streams.scalers import Scaler
from ampmon_server.store.updates.updates import PAGES


KIND = "resume"

MOST = 2000
"""The most resumes read, over all ranks."""


def note(connection: Connection, rows: RowMaker, first: wire.Update) -> bool:
    """Store how an attempt's scaler began at its first update. Return whether it forgot the scale of the step before.

    That is the last scale of the same scaler. Scalers resume from the furthest step of any, so this one may have done
    fewer steps. The comparison uses the records stored now; records that arrive later do not change it.
    """
    before = _scale_before(connection, rows)
    detail = {"restored": not first.fresh, "scale_before": before, "scale": first.scale}
    event = wire.Event(
        stream=first.stream,
        seq=first.seq,
        time=first.time,
        kind=KIND,
        ordinal=first.ordinal,
        detail=detail,
    )
    insert_rows(connection, events, [rows.event(event, 0)])
    return _resume(0, first.time, detail).forgotten is not None


def _scale_before(connection: Connection, rows: RowMaker) -> float | None:
    """The scale that the step before an attempt left; None if there is none or it is not finite."""
    key, origin = (rows.run_id, rows.stream.number), rows.attempt.origin
    before = origin
    while (number := PAGES.preceding(connection, key, before)) is not None:
        before = number << PAGE_BITS
        found = PAGES.read(connection, key, before, origin - 1)
        found = found[found["attempt"] < rows.attempt.number]
        if len(found):
            return split(float(found["scale_after"][-1]))[0]
    return None


def _resume(step: int, time: int, detail: Mapping[str, Any]) -> Resume:
    scale = math.nan if detail["scale"] is None else detail["scale"]
    return Resume(step, time, detail["scale_before"], scale, detail["restored"])


def read(connection: Connection, scaler: Scaler) -> tuple[Resume, ...]:
    """The resumes of a scaler, each step once, in order; only the newest if there are more than `MOST`."""
    table = events.c
    rows = fetch(
        connection,
        select(table.step, table.time, table.detail)
        .where(
            table.run_id == scaler.run_id,
            table.kind == KIND,
            table.stream.in_([source.number for source in scaler.sources]),
        )
        .order_by(table.step.desc(), table.stream.desc())
        .limit(MOST),
    )
    found = {step: _resume(step, time, orjson.loads(detail)) for step, time, detail in rows}
    return tuple(found[step] for step in sorted(found))


def forgotten(connection: Connection, scaler: Scaler) -> tuple[Forgotten, ...]:
    """The resumes of a scaler that forgot its scale."""
    found = (each.forgotten for each in read(connection, scaler))
    return tuple(each for each in found if each is not None)


def is_first(attempt: Attempt, update: wire.Update) -> bool:
    """Whether an update is the first of an attempt other than the run's first."""
    return attempt.number > 0 and update.ordinal == 0
