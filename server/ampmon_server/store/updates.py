"""Reads updates: the rows of a scaler over all ranks, each step once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, select

from ampmon_server.cells.merging import Cells
from ampmon_server.cells.updates import empty, of_rows
from ampmon_server.series import Floats
from ampmon_server.store import ranges
from ampmon_server.store.engine import fetch
from ampmon_server.store.numbers import INTEGER_MAX
from ampmon_server.store.scalers import Scaler, Source, not_superseded
from ampmon_server.tables import skips, streams, updates


Row = tuple[Any, ...]

GAPS_MAX = 64
"""With more holes than this in the lowest rank's rows, the others' are read as a whole."""

ROWS = np.dtype(
    [
        ("step", np.int64),
        ("time", np.int64),
        ("scale", np.float64),
        ("scale_after", np.float64),
        ("kinds", np.uint8),
        ("event", np.uint8),
        ("skipped", np.bool_),
        ("sampled", np.bool_),
        ("duration_ns", np.int64),
        ("cost_ns", np.int64),
        ("memory_peak", np.int64),
    ]
)
"""What cells are made of, of an update; a duration or a peak of -1 is not known."""

_COLUMNS: tuple[ColumnElement[Any], ...] = (
    updates.c.step,
    updates.c.time,
    func.coalesce(updates.c.scale, 0.0),  # what it is instead is in the kinds
    func.coalesce(updates.c.scale_after, 0.0),
    updates.c.kinds,
    updates.c.event,
    updates.c.skipped,
    updates.c.sampled,
    func.coalesce(updates.c.duration_ns, -1),
    updates.c.cost_ns,
    func.coalesce(updates.c.memory_peak, -1),
)
"""Those of `ROWS`."""

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
    if not any(source.meets(start, stop - 1) for source in scaler.sources):
        return []
    lead, *others = scaler.sources
    rows = _of_source(connection, scaler, lead, columns, (start, stop - 1), limit)
    if others:
        last = rows[-1][0] if limit is not None and len(rows) == limit else stop - 1
        rows = _filled(connection, scaler, others, columns, rows, (start, last), limit)
    return rows


def _of_source(
    connection: Connection,
    scaler: Scaler,
    source: Source,
    columns: Sequence[ColumnElement[Any]],
    within: ranges.Range,
    limit: int | None = None,
) -> list[Row]:
    statement = _reading(tuple(columns), source.overlaid)
    wanted = {"of": scaler.run_id, "number": source.number, "first": within[0], "last": within[1]}
    return fetch(connection, statement if limit is None else statement.limit(limit), wanted)


def read_at(connection: Connection, scaler: Scaler, source: Source, steps: Sequence[int]) -> Cells:
    """What one of a scaler's streams has of a few ``steps``, as cells of one."""
    table = updates.c
    at = (table.run_id == scaler.run_id, table.stream == source.number, table.step.in_(steps))
    statement = select(*_COLUMNS).where(*at).order_by(table.step)
    if source.overlaid:
        alone = not_superseded(table.run_id, table.stream, table.step, table.attempt)
        statement = statement.where(alone)
    rows = fetch(connection, statement)
    return cells_of(np.fromiter(rows, ROWS, len(rows)))


@lru_cache(maxsize=8)
def _reading(columns: tuple[ColumnElement[Any], ...], overlaid: bool) -> Select[Any]:
    """The rows of a stream in order of step."""
    table = updates.c
    statement = (
        select(*columns)
        .where(
            table.run_id == bindparam("of"),
            table.stream == bindparam("number"),
            table.step.between(bindparam("first"), bindparam("last")),
        )
        .order_by(table.step)
    )
    if not overlaid:
        return statement
    return statement.where(not_superseded(table.run_id, table.stream, table.step, table.attempt))


def _filled(
    connection: Connection,
    scaler: Scaler,
    others: Sequence[Source],
    columns: Sequence[ColumnElement[Any]],
    rows: list[Row],
    within: ranges.Range,
    limit: int | None,
) -> list[Row]:
    """``rows`` with those that only other ranks have: the first ``limit`` of all."""
    extents = [(each.first_step, each.last_step) for each in scaler.sources]
    first = max(within[0], min((low for low, _ in extents if low is not None), default=0))
    last = min(within[1], max((high for _, high in extents if high is not None), default=-1))
    for source in others:
        if len(rows) >= last - first + 1:
            break
        if not source.meets(first, last):
            continue
        rows = _with(connection, scaler, source, columns, rows, (first, last), limit)
        if len(rows) == limit:
            last = rows[-1][0]
    return rows


def _with(
    connection: Connection,
    scaler: Scaler,
    source: Source,
    columns: Sequence[ColumnElement[Any]],
    rows: list[Row],
    within: ranges.Range,
    limit: int | None,
) -> list[Row]:
    """``rows`` with those that only this source has."""
    gaps = ranges.gaps([row[0] for row in rows], *within)
    at_most = limit
    if len(gaps) > GAPS_MAX:
        gaps = [within]
        at_most = None if limit is None else limit + len(rows)  # it may have those too
    by_step = {row[0]: row for row in rows}
    for gap in gaps:
        if limit is not None and len(by_step) - len(rows) >= limit:
            break  # so many come before what is in the later gaps
        if source.meets(*gap):
            for row in _of_source(connection, scaler, source, columns, gap, at_most):
                by_step.setdefault(row[0], row)
    return [by_step[step] for step in sorted(by_step)][:limit]


def skipped_elsewhere(connection: Connection, scaler: Scaler, first: int, last: int) -> list[int]:
    """The steps from ``first`` to ``last`` that any rank skipped; none where there is one rank only."""
    if len(scaler.sources) < 2:
        return []
    table = skips.c
    statement = (
        select(table.step)
        .distinct()
        .where(
            table.run_id == scaler.run_id,
            table.step.between(first, last),
            table.stream.in_(_streams(scaler)),
            not_superseded(table.run_id, table.stream, table.step, table.attempt),
        )
    )
    return [step for (step,) in fetch(connection, statement)]


def _sampled_elsewhere(connection: Connection, scaler: Scaler, first: int, last: int) -> list[int]:
    """The steps that another rank than the lowest sampled, where each may speak for all.

    Where gradients are sharded they count only where all ranks sampled, so one of them tells.
    """
    if scaler.is_sharded or not any(source.sampled for source in scaler.sources[1:]):
        return []
    table = updates.c
    statement = (
        select(table.step)
        .distinct()
        .where(
            table.run_id == scaler.run_id,
            table.stream.in_([each.number for each in scaler.sources[1:] if each.sampled]),
            table.step.between(first, last),
            table.sampled == 1,
            not_superseded(table.run_id, table.stream, table.step, table.attempt),
        )
    )
    return [step for (step,) in fetch(connection, statement)]


def _streams(scaler: Scaler) -> Select[Any]:
    table = streams.c
    return select(table.stream).where(table.run_id == scaler.run_id, table.scaler == scaler.name)


def read_cells(connection: Connection, scaler: Scaler, first: int, last: int) -> Cells:
    """The updates from step ``first`` to ``last``, both included, as cells of one: what is rolled up, and drawn."""
    rows = read_rows(connection, scaler, _COLUMNS, start=first, stop=last + 1)
    if not rows:
        return empty()
    # Straight into one structured array: a Python list per column would take three times as long.
    read = np.fromiter(rows, ROWS, len(rows))
    ends = int(read["step"][0]), int(read["step"][-1])
    read["skipped"] |= np.isin(read["step"], skipped_elsewhere(connection, scaler, *ends))
    read["sampled"] |= np.isin(read["step"], _sampled_elsewhere(connection, scaler, *ends))
    return cells_of(read)


def cells_of(rows: npt.NDArray[Any]) -> Cells:
    """Cells of rows as `ROWS` has them, in order of step."""
    kinds = rows["kinds"]
    return of_rows(
        rows, _floats(rows["scale"], kinds & 3), _floats(rows["scale_after"], kinds >> 2)
    )


def _floats(values: Floats, kinds: npt.NDArray[Any]) -> Floats:
    return np.where(kinds == 0, values, _KIND_VALUES[kinds])
