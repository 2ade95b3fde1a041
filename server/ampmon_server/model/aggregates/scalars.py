"""Cells of scalars: what `ampmon.log` was given under one name, a single value being a cell of one.

Steps, times in us since the epoch and counts are int64; a value is as it was, NaN and infinities included. The least,
the greatest and the sum are of finite values only.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon_server.model.aggregates.merging import FLOAT, INT, Cells, Choice, Layout
from ampmon_server.model.aggregates.updates import NEVER
from ampmon_server.model.series import Floats, Ints


LAYOUT = Layout(
    first={"first": INT, "time_first": INT, "value_first": FLOAT},
    last={"last": INT, "time_last": INT, "value_last": FLOAT},
    # `user`: how many came with a step of the user's own.
    add={"n": INT, "nan": INT, "inf": INT, "minus_inf": INT, "user": INT, "sum": FLOAT},
    least={"time_min": INT},
    greatest={"time_max": INT},
    choices=(
        Choice("least", "value_min", FLOAT, {"value_min_step": INT, "value_min_time": INT}),
        Choice("greatest", "value_max", FLOAT, {"value_max_step": INT, "value_max_time": INT}),
        Choice("least", "user_first_step", INT, {"user_first": INT}),
        Choice("greatest", "user_last_step", INT, {"user_last": INT}),
    ),
)
"""The first and the last step that came with one of the user's own are `NEVER` and -1 where none did."""

ROWS = np.dtype(
    [("step", INT), ("attempt", INT), ("time", INT), ("value", FLOAT), ("user_step", INT)]
)
"""A value as it is stored; a user's step of -1 was not given."""

Rows: TypeAlias = npt.NDArray[Any]
"""A structured array [n] of `ROWS`, in order of step and attempt."""


def empty() -> Cells:
    return np.zeros(0, LAYOUT.dtype)


def of_rows(rows: Rows) -> Cells:
    """A cell for each row [n], each step once."""
    cells = np.zeros(len(rows), LAYOUT.dtype)
    step, time, value, user = (rows[name] for name in ("step", "time", "value", "user_step"))
    cells["n"] = 1
    for end in ("first", "last"):
        cells[end], cells[f"time_{end}"], cells[f"value_{end}"] = step, time, value
    cells["time_min"] = cells["time_max"] = time
    finite = np.isfinite(value)
    cells["nan"], cells["inf"], cells["minus_inf"] = (
        np.isnan(value),
        value == np.inf,
        value == -np.inf,
    )
    cells["sum"] = np.where(finite, value, 0.0)
    for name in ("value_min", "value_max"):
        cells[name] = np.where(finite, value, np.nan)
        cells[f"{name}_step"], cells[f"{name}_time"] = step, time
    given = user >= 0
    cells["user"] = given
    cells["user_first_step"] = np.where(given, step, NEVER)
    cells["user_last_step"] = np.where(given, step, -1)
    cells["user_first"] = cells["user_last"] = user
    return cells


def not_finite(cells: Cells) -> Ints:
    """How many values of each cell are NaN or infinite, [n]."""
    lost: Ints = cells["nan"] + cells["inf"] + cells["minus_inf"]
    return lost


def mean(cells: Cells) -> Floats:
    """The mean of each cell's finite values, NaN where it has none, [n]."""
    known = cells["n"] - not_finite(cells)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known > 0, cells["sum"] / known, np.nan), np.float64)


def merge(cells: Cells, starts: Ints) -> Cells:
    """As `Layout.merge`; a sum that float64 cannot hold is infinite or NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return LAYOUT.merge(cells, starts)
