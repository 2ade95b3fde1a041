"""Reads updates as columns for API clients: the recorded values and the statistics of sampled gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from sqlalchemy import Connection

from ampmon.numerics.histogram import SMALL_CLASSES, gradient_norm, headroom_bits
from ampmon_server.model.aggregates.updates import EVENTS, PATHS, Rows
from ampmon_server.model.series import Floats, Ints, empty_gradients
from ampmon_server.store.engine.numbers import INTEGER_MAX, split_named
from ampmon_server.store.samples import samples
from ampmon_server.store.streams.scalers import Scaler
from ampmon_server.store.updates.updates import first_rows, with_skips


Column: TypeAlias = list[Any]
Columns: TypeAlias = dict[str, Column | None]

_PATH_NAMES = [
    "+".join(name for name, bit in PATHS.items() if bits & bit) for bits in range(2 ** len(PATHS))
]


class ColumnsPage(NamedTuple):
    """Columns, the step where the next page starts (None at the end), and the first step whose rows are kept."""

    columns: Columns
    following: int | None
    rows_from: int


def read(
    connection: Connection, scaler: Scaler, *, start: int, stop: int, limit: int
) -> ColumnsPage:
    """Return at most ``limit`` updates with ``start`` <= step < ``stop``, without steps whose rows are pruned.

    All columns are lists of the same length, null where an update was not sampled. A column of kinds is None as a
    whole if all numbers of its column are finite.
    """
    start = max(start, scaler.rows_from)
    rows = first_rows(connection, scaler, start=start, stop=stop, limit=limit + 1)
    following = int(rows["step"][limit]) if len(rows) > limit else None
    rows = with_skips(connection, scaler, rows[:limit])
    columns = {**_recorded(rows), **_sampled(connection, scaler, rows["step"].tolist())}
    return ColumnsPage(columns, following, scaler.rows_from)


def _recorded(rows: Rows) -> Columns:
    scales = {name: rows[name] for name in ("scale", "scale_after")}
    finite = all(np.isfinite(each).all() for each in scales.values())
    scale, after = (_with_kinds(name, each.tolist(), finite) for name, each in scales.items())
    return {
        "step": rows["step"].tolist(),
        "attempt": rows["attempt"].tolist(),
        "time": rows["time"].tolist(),
        "duration_us": _known(rows["duration_ns"], 1000),
        **scale,
        **after,
        "growth_tracker": rows["growth_tracker"].tolist(),
        "event": [EVENTS[each] for each in rows["event"].tolist()],
        "skipped": rows["skipped"].astype(bool).tolist(),
        "path": [_PATH_NAMES[each] for each in rows["paths"].tolist()],
        "cost_us": (rows["cost_ns"] / 1000).tolist(),
        "memory_peak": _known(rows["memory_peak"]),
    }


def _known(values: Ints, unit: int = 1) -> Column:
    """Values divided by ``unit``, null for negative ones, which mean unknown."""
    given = values.tolist() if unit == 1 else (values / unit).tolist()
    return [None if value < 0 else value for value in given] if (values < 0).any() else given


def _sampled(connection: Connection, scaler: Scaler, steps: Sequence[int]) -> Columns:
    """Columns of the gradients on fp16's grid, and the norm of all gradients."""
    series = empty_gradients()
    if steps:
        stop = min(steps[-1], INTEGER_MAX) + 1
        series = samples.read_series(connection, scaler, start=steps[0], stop=stop)
    on_grid = series.on_grid
    with np.errstate(over="ignore"):
        squares = on_grid.sum_squares + series.off_grid.sum_squares
    places = dict(zip(series.step.tolist(), range(len(series)), strict=True))
    looked = {step: place for step, place in places.items() if on_grid.looked[place]}
    columns: Columns = {}
    for suffix, values in ("fraction", on_grid.shares()), ("fraction_error", on_grid.errors()):
        for name, column in zip(SMALL_CLASSES, values.T, strict=True):
            columns[f"{name}_{suffix}"] = _spread(steps, looked, column)
    headroom = _spread(steps, looked, headroom_bits(on_grid.amax))
    norm = _spread(steps, places, gradient_norm(squares, series.scale))
    for name, column in ("headroom_bits", headroom), ("gradient_norm", norm):
        finite = all(value is None or math.isfinite(value) for value in column)
        columns |= _with_kinds(name, column, finite)
    return columns


def _spread(steps: Sequence[int], places: dict[int, int], values: Floats) -> list[float | None]:
    """Spread the values of samples over the steps of updates, null where ``places`` has no index for a step."""
    listed = values.tolist()
    return [None if place is None else listed[place] for place in map(places.get, steps)]


def _with_kinds(name: str, column: list[float | None], finite: bool) -> Columns:
    """A column, null where a number is not finite, and the kinds of its numbers, None if all are ``finite``."""
    if finite:
        return {name: column, f"{name}_kind": None}
    pairs = [(None, None) if value is None else split_named(value) for value in column]
    return {name: [value for value, _ in pairs], f"{name}_kind": [kind for _, kind in pairs]}
