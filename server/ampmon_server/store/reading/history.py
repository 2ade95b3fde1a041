"""Reads what a replay of a scaler needs: its newest updates, the skips that no scale prevents, and its samples."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import Connection, select

from ampmon_server.analysis.policy.history import UPDATES_MAX, History
from ampmon_server.model.case import LOST
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.engine.rows import fetch
from ampmon_server.store.runs import cases
from ampmon_server.store.samples import samples
from ampmon_server.store.schema.tables import skips
from ampmon_server.store.streams import scalers
from ampmon_server.store.streams.scalers import Scaler, not_superseded
from ampmon_server.store.updates.updates import read_rows, with_skips


def read(connection: Connection, run_id: UUID, *, stream: int | None = None) -> History:
    """Return the newest `UPDATES_MAX` updates of a scaler over all ranks. Raises NotFound, also if it has no update."""
    scaler = scalers.find(connection, run_id, stream)
    last = max(
        (each.last_step for each in scaler.sources if each.last_step is not None), default=-1
    )
    start = max(last + 1 - UPDATES_MAX, scaler.rows_from)
    rows = with_skips(connection, scaler, read_rows(connection, scaler, start=start))
    if not len(rows):
        raise NotFound(f"Run {run_id} has no update yet: there is nothing to replay.")
    ends = int(rows["step"][0]), int(rows["step"][-1])
    policy = cases.policy_of(connection, scaler)
    return History.of(
        rows["step"],
        rows["scale"],
        rows["skipped"] > 0,
        np.isin(rows["step"], _nan(connection, scaler, ends)),
        policy=policy,
        samples=samples.read_series(connection, scaler, start=start),
        updates=max(each.updates for each in scaler.sources),
        tracker=_tracker_before(rows[0], policy.growth_interval),
    )


def _tracker_before(row: Any, interval: int) -> int:
    """The growth tracker before an update, from its row. A skip has erased it."""
    # After a growth the tracker is 0, and before it was one less than the interval.
    return 0 if row["skipped"] else int(row["growth_tracker"] - 1) % max(interval, 1)


def _nan(connection: Connection, scaler: Scaler, within: tuple[int, int]) -> list[int]:
    """The steps whose skip no scale prevents: the loss was not finite, or, if unknown, there was NaN without inf."""
    table = skips.c
    statement = select(table.step).where(
        table.run_id == scaler.run_id,
        table.step.between(*within),
        table.stream.in_([each.number for each in scaler.sources]),
        (table.loss == LOST) | (table.loss.is_(None) & (table.cause == "nan")),
        not_superseded(table.run_id, table.stream, table.step, table.attempt),
    )
    return [step for (step,) in fetch(connection, statement)]
