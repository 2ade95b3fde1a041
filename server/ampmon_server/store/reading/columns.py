"""Reads updates as columns for API clients: the recorded values and the statistics of sampled gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from sqlalchemy import Connection

from ampmon_server.model.aggregates.updates import Rows
from ampmon_server.model.series import EVENTS, Floats, Ints
from ampmon_server.store.engine.numbers import INTEGER_MAX, KINDS, split
from ampmon_server.store.samples import derived, samples
from ampmon_server.store.streams.scalers import Scaler
from ampmon_server.store.updates.updates import PATHS, read_rows, with_skips


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
    rows = read_rows(connection, scaler, start=start, stop=stop, limit=limit + 1)
    following = int(rows["step"][limit]) if len(rows) > limit else None
    rows = with_skips(connection, scaler, rows[:limit])
    columns = {**_recorded(rows), **_sampled(connection, scaler, rows["step"].tolist())}
    return ColumnsPage(columns, following, scaler.rows_from)


def _recorded(rows: Rows) -> Columns:
    scale, scale_kind = _numbers(rows["scale"])
    after, after_kind = _numbers(rows["scale_after"])
    if scale_kind or after_kind:  # both or neither
        scale_kind, after_kind = (each or [None] * len(rows) for each in (scale_kind, after_kind))
    return {
        "step": rows["step"].tolist(),
        "attempt": rows["attempt"].tolist(),
        "time": rows["time"].tolist(),
        "duration_us": _known(rows["duration_ns"], 1000),
        "scale": scale,
        "scale_kind": scale_kind,
        "scale_after": after,
        "scale_after_kind": after_kind,
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


def _numbers(values: Floats) -> tuple[Column, Column | None]:
    """Floats, null where not finite, and their kinds, None as a whole if all are finite."""
    if np.isfinite(values).all():
        return values.tolist(), None
    pairs = [split(value) for value in values.tolist()]
    return [value for value, _ in pairs], [KINDS[kind] for _, kind in pairs]


def _sampled(connection: Connection, scaler: Scaler, steps: Sequence[int]) -> Columns:
    """Columns of the gradients on fp16's grid, and the norm of all gradients."""
    if not steps:
        return _spread([], {}, {})
    series = samples.read_series(
        connection, scaler, start=steps[0], stop=min(steps[-1], INTEGER_MAX) + 1
    )
    found = derived.derive(series.on_grid)
    norms = derived.norm(series.on_grid, series.off_grid, series.scale)
    columns = {
        "zero_fraction": found.zero,
        "below_grid_fraction": found.below_grid,
        "subnormal_fraction": found.subnormal,
        "zero_fraction_error": found.zero_error,
        "below_grid_fraction_error": found.below_grid_error,
        "subnormal_fraction_error": found.subnormal_error,
        "headroom_bits": found.headroom_bits,
        "gradient_norm": norms,
    }
    known = found.known.tolist()
    return _spread(
        steps,
        dict(zip(series.step.tolist(), range(len(series)), strict=True)),
        {
            name: [
                value if name == "gradient_norm" or seen else None
                for value, seen in zip(values.tolist(), known, strict=True)
            ]
            for name, values in columns.items()
        },
    )


def _spread(
    steps: Sequence[int], places: dict[int, int], columns: dict[str, list[float | None]]
) -> Columns:
    """Spread columns of samples over the steps of updates, and add the kinds of numbers that are not finite."""
    indices = [places.get(step) for step in steps]
    spread: Columns = {}
    for name in _SAMPLED:
        values = columns.get(name, [])
        column = [None if index is None else values[index] for index in indices]
        odd = any(value is not None and not math.isfinite(value) for value in column)
        spread[name] = (
            [None if value is None else split(value)[0] for value in column] if odd else column
        )
        if not name.endswith(("_fraction", "_error")):
            spread[f"{name}_kind"] = (
                [None if value is None else KINDS[split(value)[1]] for value in column]
                if odd
                else None
            )
    return spread


_SAMPLED = (
    "zero_fraction",
    "below_grid_fraction",
    "subnormal_fraction",
    "zero_fraction_error",
    "below_grid_fraction_error",
    "subnormal_fraction_error",
    "headroom_bits",
    "gradient_norm",
)
