"""Cells of scalars that `ampmon.log` got under one name. A single value is a cell too.

Steps, times in us since the epoch and counts are int64. First and last values may be NaN or infinite. The least, the
greatest and the sum are of finite values only.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon_server.model.aggregates.merging import FLOAT, INT, NEVER, Cells, Choice, Layout
from ampmon_server.model.series import Floats, Ints


LAYOUT = Layout(
    first={"first": INT, "time_first": INT, "value_first": FLOAT},
    last={"last": INT, "time_last": INT, "value_last": FLOAT},
    # `user`: how many values came with the user's own step.
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
"""`user_first_step` and `user_last_step` are `NEVER` and -1 if no value came with the user's own step."""

merge = LAYOUT.merge
empty = LAYOUT.empty

ROWS = np.dtype(
    [("step", INT), ("attempt", INT), ("time", INT), ("value", FLOAT), ("user_step", INT)]
)
"""A stored value. `user_step` is -1 if none was given."""

Rows: TypeAlias = npt.NDArray[Any]
"""A structured array [n] of `ROWS`, in order of step and attempt."""


def of_rows(rows: Rows) -> Cells:
    """Return a cell for each row [n]. Each step occurs once."""
    step, time, value, user = (rows[name] for name in ("step", "time", "value", "user_step"))
    cells = LAYOUT.of_single(step, time, value=value)
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
    """Return the number of NaN and infinite values of each cell, [n]."""
    lost: Ints = cells["nan"] + cells["inf"] + cells["minus_inf"]
    return lost


def mean(cells: Cells) -> Floats:
    """Return the mean of each cell's finite values, [n]. NaN if it has none."""
    known = cells["n"] - not_finite(cells)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known > 0, cells["sum"] / known, np.nan), np.float64)
