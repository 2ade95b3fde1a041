"""Cells of sampled gradients, each of consecutive samples of a scaler. A single sample is a cell too.

Fields that begin with `on_` are of the parameters on fp16's grid, those with `off_` of the other parameters. A share is
of all elements of its side, in the order of `SHARES`, and NaN if the side has no elements. Steps, times in us and
counts are int64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np

from ampmon.numerics.histogram import BINS, SMALL, SMALL_CLASSES
from ampmon_server.model.aggregates.merging import FLOAT, INT, NEVER, Cells, Choice, Kind, Layout
from ampmon_server.model.series import Floats, GradientSeries, Totals, take


SHARES = (*SMALL_CLASSES, "normal", "not_finite")
"""Element classes, named as in `ampmon.numerics.histogram.Classes`. Those whose share has an error come first."""

Side: TypeAlias = Literal["on", "off"]
SIDES: tuple[Side, ...] = ("on", "off")

_ALL = len(SHARES)
_ADD: Mapping[str, Kind] = {
    "samples": INT,
    "zeros": INT,
    "inf": INT,
    "nan": INT,
    "sum_squares": FLOAT,
    "histogram": (INT, BINS),
}
_LEAST: Mapping[str, Kind] = {"low": (FLOAT, SMALL)}
_GREATEST: Mapping[str, Kind] = {
    "amax": FLOAT,
    "elements_most": INT,
    "lost_most": INT,
    "high": (FLOAT, SMALL),
}
_NEWEST: Mapping[str, Kind] = {
    "last_time": INT,
    "parameters": INT,
    "elements": INT,
    "looked": INT,
    "last_share": (FLOAT, _ALL),
    "error": (FLOAT, SMALL),
}


_OLDEST: Mapping[str, Kind] = {"first_time": INT, "first_share": (FLOAT, _ALL)}
_MIN: Mapping[str, Kind] = {"min_step": (INT, _ALL), "min_time": (INT, _ALL)}
_MAX: Mapping[str, Kind] = {"max_step": (INT, _ALL), "max_time": (INT, _ALL)}


def _of(side: Side, fields: Mapping[str, Kind]) -> dict[str, Kind]:
    return {f"{side}_{name}": kind for name, kind in fields.items()}


def _of_sides(fields: Mapping[str, Kind]) -> dict[str, Kind]:
    return {**_of("on", fields), **_of("off", fields)}


def _choices(side: Side) -> tuple[Choice, ...]:
    return (
        Choice("least", f"{side}_first", INT, _of(side, _OLDEST)),
        Choice("greatest", f"{side}_last", INT, _of(side, _NEWEST)),
        Choice("least", f"{side}_min", (FLOAT, _ALL), _of(side, _MIN)),
        Choice("greatest", f"{side}_max", (FLOAT, _ALL), _of(side, _MAX)),
    )


_NEVER: Mapping[str, float] = {
    "first": NEVER,
    "last": -1,
    **dict.fromkeys(("low", "high", "first_share", "last_share", "min", "max"), np.nan),
}
"""Values for a side without elements. All other fields are 0."""

LAYOUT = Layout(
    first={"first": INT, "time_first": INT, "scale_first": FLOAT},
    last={"last": INT, "time_last": INT, "scale_last": FLOAT},
    add={"n": INT, **_of_sides(_ADD)},
    least={"time_min": INT, **_of_sides(_LEAST)},
    greatest={"time_max": INT, **_of_sides(_GREATEST)},
    choices=(*_choices("on"), *_choices("off")),
)
"""`samples` counts the samples that looked at an element of the side. `first` and `last` are the steps of the first and
last of them, and the fields of the newest sample are from `last`. `low` is the least low end of the shares' 95 %
intervals, `high` the greatest high end. `lost_most` is the most inf and NaN elements in one sample. An `amax` of NaN
counts as infinite.
"""


empty = LAYOUT.empty


def of_series(series: GradientSeries) -> Cells:
    """Return a cell for each sample."""
    cells = LAYOUT.of_single(series.step, series.time, scale=series.scale)
    _fill(cells, "on", series.on_grid)
    _fill(cells, "off", series.off_grid)
    return cells


def _fill(cells: Cells, side: Side, of: Totals) -> None:
    rows = np.flatnonzero(of.looked)
    for name, never in _NEVER.items():
        cells[f"{side}_{name}"] = never
    of = take(of, rows)
    step, time = cells["first"][rows], cells["time_first"][rows]
    shares = _shares(of)
    low, high = of.interval()
    copied = ("zeros", "inf", "nan", "sum_squares", "histogram", "parameters", "elements", "looked")
    fields = {name: getattr(of, name) for name in copied}
    fields |= dict.fromkeys(("first", "last"), step)
    fields |= dict.fromkeys(("first_time", "last_time"), time)
    fields |= dict.fromkeys(("first_share", "last_share", "min", "max"), shares)
    fields |= dict.fromkeys(("min_step", "max_step"), step[:, None])
    fields |= dict.fromkeys(("min_time", "max_time"), time[:, None])
    fields |= {
        "samples": np.ones(len(rows), np.int64),
        "amax": np.where(np.isnan(of.amax), np.inf, of.amax),
        "elements_most": of.elements,
        "lost_most": of.inf + of.nan,
        "low": low,
        "high": high,
        "error": np.where(of.grain[:, None] > 0, of.errors(), 0.0),
    }
    for name, values in fields.items():
        cells[f"{side}_{name}"][rows] = values


def _shares(of: Totals) -> Floats:
    """The share of each class, [m, 5]. NaN where there is no element."""
    classes = of.classes()
    counts = np.stack([getattr(classes, name) for name in SHARES], axis=-1)
    with np.errstate(invalid="ignore"):
        return np.asarray(counts / classes.total[:, None], np.float64)
