"""Updates as columns for people and their programs: what was recorded of each, and what its sampled gradients say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection

from ampmon_server.series import EVENTS
from ampmon_server.store import derived, samples
from ampmon_server.store.numbers import INTEGER_MAX, KINDS, split
from ampmon_server.store.rows import PATHS
from ampmon_server.store.scalers import Scaler
from ampmon_server.store.updates import read_rows, skipped_elsewhere
from ampmon_server.tables import updates


Column: TypeAlias = list[Any]
Columns: TypeAlias = dict[str, Column | None]

_PATH_NAMES = [
    "+".join(name for name, bit in PATHS.items() if bits & bit) for bits in range(2 ** len(PATHS))
]


class Page(NamedTuple):
    """Columns, the step to go on from, None at the end, and the first step whose rows are held."""

    columns: Columns
    following: int | None
    rows_from: int


def read(connection: Connection, scaler: Scaler, *, start: int, stop: int, limit: int) -> Page:
    """At most ``limit`` updates with ``start`` <= step < ``stop``; none of before those whose rows are all held.

    Columns are lists of one length, null where an update was not sampled. A column of kinds is null as a whole where
    every number of its column is finite.
    """
    table = updates.c
    wanted = (
        table.step,
        table.attempt,
        table.time,
        table.duration_ns,
        table.scale,
        table.scale_after,
        table.kinds,
        table.growth_tracker,
        table.event,
        table.skipped,
        table.paths,
        table.cost_ns,
        table.memory_peak,
    )
    start = max(start, scaler.rows_from)
    rows = read_rows(connection, scaler, wanted, start=start, stop=stop, limit=limit + 1)
    following = rows[limit][0] if len(rows) > limit else None
    rows = rows[:limit]
    raw = {column.name: [row[place] for row in rows] for place, column in enumerate(wanted)}
    elsewhere = (
        set(skipped_elsewhere(connection, scaler, rows[0][0], rows[-1][0])) if rows else set()
    )
    columns = {**_recorded(raw, elsewhere), **_sampled(connection, scaler, raw["step"])}
    return Page(columns, following, scaler.rows_from)


def _recorded(raw: dict[str, Column], elsewhere: set[int]) -> Columns:
    kinds = raw["kinds"]
    skipped = list(map(bool, raw["skipped"]))
    if elsewhere:
        skipped = [
            flag or step in elsewhere for flag, step in zip(skipped, raw["step"], strict=True)
        ]
    return {
        "step": raw["step"],
        "attempt": raw["attempt"],
        "time": raw["time"],
        "duration_us": [None if each is None else each / 1000 for each in raw["duration_ns"]],
        "scale": raw["scale"],
        "scale_kind": [KINDS[each & 3] for each in kinds] if any(kinds) else None,
        "scale_after": raw["scale_after"],
        "scale_after_kind": [KINDS[each >> 2] for each in kinds] if any(kinds) else None,
        "growth_tracker": raw["growth_tracker"],
        "event": [EVENTS[each] for each in raw["event"]],
        "skipped": skipped,
        "path": [_PATH_NAMES[each] for each in raw["paths"]],
        "cost_us": [each / 1000 for each in raw["cost_ns"]],
        "memory_peak": raw["memory_peak"],
    }


def _sampled(connection: Connection, scaler: Scaler, steps: Sequence[int]) -> Columns:
    """Columns of the gradients on fp16's grid, and the norm of all."""
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
    """Columns of samples over the steps of updates, with the kinds of what is not finite beside them."""
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
