"""Reads what happened to a scaler's scale on resume, from an event that ingest adds at an attempt's first update.

The event has the seq of that update, which no other event has. So it is stored once, however often the update is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, select

from ampmon_server.model.series import Forgotten, Resume
from ampmon_server.store.engine.rows import fetch
from ampmon_server.store.schema.tables import events
from ampmon_server.store.streams.scalers import Scaler


KIND = "resume"

MOST = 2000
"""The most resumes read, over all ranks."""


def resume_of(step: int, time: int, detail: Mapping[str, Any]) -> Resume:
    scale = math.nan if detail["scale"] is None else detail["scale"]
    return Resume(step, time, detail["scale_before"], scale, detail["restored"])


_NEWEST = (
    select(events.c.step, events.c.time, events.c.detail)
    .where(
        events.c.run_id == bindparam("of"),
        events.c.kind == KIND,
        events.c.stream.in_(bindparam("numbers", expanding=True)),
    )
    .order_by(events.c.step.desc(), events.c.stream.desc())
    .limit(MOST)
)


def read(connection: Connection, scaler: Scaler) -> tuple[Resume, ...]:
    """The resumes of a scaler, each step once, in order; only the newest if there are more than `MOST`."""
    numbers = [source.number for source in scaler.sources]
    rows = fetch(connection, _NEWEST, {"of": scaler.run_id, "numbers": numbers})
    found = {step: resume_of(step, time, orjson.loads(detail)) for step, time, detail in rows}
    return tuple(found[step] for step in sorted(found))


def forgotten(connection: Connection, scaler: Scaler) -> tuple[Forgotten, ...]:
    """The resumes of a scaler that forgot its scale."""
    found = (each.forgotten for each in read(connection, scaler))
    return tuple(each for each in found if each is not None)
