"""Reads updates: the rows of a scaler over all ranks, as arrays for figures and as columns for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Connection, func, select

from ampmon_server.series import Floats, UpdateSeries, empty_updates
from ampmon_server.store import ranges
from ampmon_server.store.engine import fetch
from ampmon_server.store.numbers import INTEGER_MAX
from ampmon_server.store.scalers import Scaler, Source, not_superseded
from ampmon_server.tables import skips, updates


Row = tuple[Any, ...]

GAPS_MAX = 64
"""With more holes than this in the lowest rank's rows, the others' are read as a whole."""

_SERIES = np.dtype(
    [
        ("step", np.int64),
        ("time", np.int64),
        ("scale", np.float64),
        ("scale_after", np.float64),
        ("kinds", np.uint8),
        ("event", np.uint8),
        ("skipped", np.bool_),
    ]
)
_KIND_VALUES = np.array([np.nan, np.nan, np.inf, -np.inf])


def read_rows(
    connection: Connection,
    scaler: Scaler,
    columns: Sequence[ColumnElement[Any]],
    *,
    start: int = 0,
    stop: int = INTEGER_MAX + 1,
    limit: int | None = None,
) -> list[Row]:
    """Rows of ``columns``, of which `step` is the first, in order of step, each step once.

    The lowest rank's row of a step stands for all; where it has none, the next one's that has.
    """
    if not scaler.sources:
        return []
    lead, *others = scaler.sources
    rows = _of_source(connection, scaler, lead, columns, (start, stop - 1), limit)
    if others:
        last = rows[-1][0] if limit is not None and len(rows) == limit else stop - 1
        rows = _filled(connection, scaler, others, columns, rows, (start, last))
    return rows if limit is None else rows[:limit]


def _of_source(
    connection: Connection,
    scaler: Scaler,
    source: Source,
    columns: Sequence[ColumnElement[Any]],
    within: ranges.Range,
    limit: int | None = None,
) -> list[Row]:
    table = updates.c
    statement = (
        select(*columns)
        .where(
            table.run_id == scaler.run_id,
            table.stream == source.number,
            table.step.between(*within),
        )
        .order_by(table.step)
        .limit(limit)
    )
    if source.overlaid:
        statement = statement.where(
            not_superseded(table.run_id, table.stream, table.step, table.attempt)
        )
    return fetch(connection, statement)


def _filled(
    connection: Connection,
    scaler: Scaler,
    others: Sequence[Source],
    columns: Sequence[ColumnElement[Any]],
    rows: list[Row],
    within: ranges.Range,
) -> list[Row]:
    """``rows`` with those that only other ranks have."""
    firsts = [each.first_step for each in scaler.sources if each.first_step is not None]
    lasts = [each.last_step for each in scaler.sources if each.last_step is not None]
    if not lasts:
        return rows
    first, last = max(within[0], min(firsts)), min(within[1], max(lasts))
    if len(rows) == last - first + 1:
        return rows
    gaps = ranges.gaps([row[0] for row in rows], first, last)
    if len(gaps) > GAPS_MAX:
        gaps = [(first, last)]
    by_step = {row[0]: row for row in rows}
    for gap in gaps:
        for source in others:
            for row in _of_source(connection, scaler, source, columns, gap):
                by_step.setdefault(row[0], row)
    return [by_step[step] for step in sorted(by_step)]


def skipped_elsewhere(connection: Connection, scaler: Scaler, first: int, last: int) -> list[int]:
    """The steps from ``first`` to ``last`` that any rank but the lowest skipped."""
    others = [source.number for source in scaler.sources[1:]]
    if not others:
        return []
    table = skips.c
    statement = (
        select(table.step)
        .distinct()
        .where(
            table.run_id == scaler.run_id,
            table.step.between(first, last),
            table.stream.in_(others),
            not_superseded(table.run_id, table.stream, table.step, table.attempt),
        )
    )
    return [step for (step,) in fetch(connection, statement)]


def read_series(
    connection: Connection, scaler: Scaler, *, start: int = 0, stop: int = INTEGER_MAX + 1
) -> UpdateSeries:
    """The updates with ``start`` <= step < ``stop``."""
    table = updates.c
    columns = (
        table.step,
        table.time,
        func.coalesce(table.scale, 0.0),  # what it is instead is in the kinds
        func.coalesce(table.scale_after, 0.0),
        table.kinds,
        table.event,
        table.skipped,
    )
    rows = read_rows(connection, scaler, columns, start=start, stop=stop)
    if not rows:
        return empty_updates()
    # Straight into one structured array: a Python list per column would take three times as long.
    read = np.fromiter(rows, _SERIES, len(rows))
    steps, kinds = read["step"].copy(), read["kinds"]
    elsewhere = skipped_elsewhere(connection, scaler, int(steps[0]), int(steps[-1]))
    return UpdateSeries(
        step=steps,
        time=read["time"].copy(),
        scale=_floats(read["scale"], kinds & 3),
        scale_after=_floats(read["scale_after"], kinds >> 2),
        event=read["event"].copy(),
        skipped=read["skipped"] | np.isin(steps, elsewhere),
    )


def _floats(values: Floats, kinds: npt.NDArray[Any]) -> Floats:
    return np.where(kinds == 0, values, _KIND_VALUES[kinds])
