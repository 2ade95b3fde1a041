"""Cells of consecutive updates of a scaler. A single update is a cell too.

Steps, times in us since the epoch and counts are int64. Scales may be NaN or infinite.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon.numerics.sampling_error import Ints
from ampmon_server.model.aggregates.merging import FLOAT, INT, NEVER, Cells, Choice, Layout


EVENTS = ("steady", "grow", "grow_capped", "backoff", "manual_set", "dead")
"""An update's event is stored and passed on as its index in this tuple. Append only."""

PATHS = {"plain": 1, "unscaled": 2, "fused": 4}
"""Bits of an update's `paths`. Append only."""

MOVES = EVENTS[1:]
"""The events other than `steady`. Each has a place in a cell's fields `move...` [5]. Append only."""

_MOVES = len(MOVES)

LAYOUT = Layout(
    first={"first": INT, "time_first": INT, "scale_first": FLOAT},
    last={"last": INT, "time_last": INT, "scale_last": FLOAT, "after_last": FLOAT},
    # `unusable`: updates whose scale cannot divide a gradient: NaN or negative.
    add={
        "n": INT,
        "skipped": INT,
        "sampled": INT,
        "unusable": INT,
        "timed": INT,
        "moves": (INT, _MOVES),
        "duration_ns": FLOAT,
        "cost_ns": FLOAT,
    },
    least={
        "time_min": INT,
        "skip_first": INT,
        "move_first": (INT, _MOVES),
        "move_after_min": (FLOAT, _MOVES),
    },
    greatest={
        "time_max": INT,
        "memory_peak": INT,
        "duration_max_ns": FLOAT,
        "cost_max_ns": FLOAT,
        "move_after_max": (FLOAT, _MOVES),
    },
    choices=(
        Choice("least", "scale_min", FLOAT, {"scale_min_step": INT, "scale_min_time": INT}),
        Choice("greatest", "scale_max", FLOAT, {"scale_max_step": INT, "scale_max_time": INT}),
        Choice("greatest", "skip_last", INT, {"skip_time": INT}),
        Choice(
            "greatest",
            "move_last",
            (INT, _MOVES),
            {
                "move_time": (INT, _MOVES),
                "move_scale": (FLOAT, _MOVES),
                "move_after": (FLOAT, _MOVES),
            },
        ),
    ),
)
"""`move_after_min` and `move_after_max` bound the scale after a move.

`move_last` and the fields that it carries are of the last move.
"""


empty = LAYOUT.empty

ROWS = np.dtype(
    [
        ("step", INT),
        ("attempt", INT),
        ("time", INT),
        ("scale", FLOAT),
        ("scale_after", FLOAT),
        ("growth_tracker", INT),
        ("event", INT),
        ("skipped", INT),
        ("sampled", INT),
        ("paths", INT),
        ("duration_ns", INT),
        ("cost_ns", INT),
        ("memory_peak", INT),
    ]
)
"""A stored update. `event` is an index in `EVENTS`. A duration or peak of -1 is unknown."""

Rows: TypeAlias = npt.NDArray[Any]
"""A structured array [n] of `ROWS`, in order of step and attempt."""


def of_rows(rows: Rows) -> Cells:
    """Return a cell for each row [n]. Each step occurs once."""
    step, time, scale = (rows[name] for name in ("step", "time", "scale"))
    cells = LAYOUT.of_single(step, time, scale=scale)
    cells["after_last"] = rows["scale_after"]
    with np.errstate(invalid="ignore"):
        usable = scale >= 0
    cells["unusable"] = ~usable
    for name in ("scale_min", "scale_max"):
        cells[name] = np.where(usable, scale, np.nan)
        cells[f"{name}_step"], cells[f"{name}_time"] = step, time
    _fill_skips(cells, rows)
    _fill_moves(cells, rows)
    _fill_costs(cells, rows)
    return cells


def _fill_skips(cells: Cells, rows: Rows) -> None:
    skipped = rows["skipped"].astype(bool)
    cells["skipped"], cells["sampled"] = skipped, rows["sampled"]
    cells["skip_first"] = np.where(skipped, rows["step"], NEVER)
    cells["skip_last"] = np.where(skipped, rows["step"], -1)
    cells["skip_time"] = np.where(skipped, rows["time"], 0)


def _fill_moves(cells: Cells, rows: Rows) -> None:
    cells["move_first"], cells["move_last"] = NEVER, -1
    cells["move_after_min"] = cells["move_after_max"] = np.nan
    at = np.flatnonzero(rows["event"])
    moved = rows[at]
    which = moved["event"] - 1
    for name, values in (
        ("moves", 1),
        ("move_first", moved["step"]),
        ("move_last", moved["step"]),
        ("move_time", moved["time"]),
        ("move_scale", moved["scale"]),
        ("move_after", moved["scale_after"]),
        ("move_after_min", moved["scale_after"]),
        ("move_after_max", moved["scale_after"]),
    ):
        cells[name][at, which] = values


def _fill_costs(cells: Cells, rows: Rows) -> None:
    """Fill in what timed updates took. The first update of a process has no duration."""
    timed = rows["duration_ns"] >= 0
    cells["timed"] = timed
    cells["memory_peak"] = rows["memory_peak"]
    for name in ("duration", "cost"):
        values = rows[f"{name}_ns"]
        cells[f"{name}_ns"] = np.where(timed, values, 0)
        cells[f"{name}_max_ns"] = np.where(timed, values, np.nan)


class Counts(NamedTuple):
    """Numbers of distinct steps of a scaler: all, skipped and sampled."""

    updates: int = 0
    skipped: int = 0
    sampled: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: Counts) -> Counts:
        return Counts(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def count_rows(rows: Rows) -> Counts:
    """Return the counts of rows. Each step occurs once."""
    return Counts(len(rows), int(rows["skipped"].sum()), int(rows["sampled"].sum()))


def count(cells: Cells) -> Counts:
    return Counts(*(int(cells[name].sum()) for name in ("n", "skipped", "sampled")))


def missing(cells: Cells) -> Ints:
    """Return how many steps between the first and last of each cell have no record, [n]."""
    gone: Ints = cells["last"] - cells["first"] + 1 - cells["n"]
    return gone
