"""Cells of sampled gradients: what figures draw of stretches of a scaler's samples, a sample being a cell of one.

Each holds the parameters on fp16's grid, fields that begin with `on_`, and the others, `off_`. A share is of all
elements of its side, in the order of `SHARES`; NaN where a side has none. Steps, times in us and counts are int64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np

from ampmon.numerics.histogram import BINS, SMALL, SMALL_CLASSES
from ampmon_server.model.aggregates.merging import FLOAT, INT, Cells, Choice, Kind, Layout
from ampmon_server.model.series import Floats, GradientSeries, Totals, take


SHARES = (*SMALL_CLASSES, "normal", "not_finite")
"""Classes of elements, as `ampmon.numerics.histogram.Classes` names them: those whose share has an error come first."""

NEVER = np.iinfo(np.int64).max

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


def _of_sides(fields: Mapping[str, Kind]) -> dict[str, Kind]:
    return {f"{side}_{name}": kind for side in SIDES for name, kind in fields.items()}


def _choices(side: Side) -> tuple[Choice, ...]:
    def named(fields: Mapping[str, Kind]) -> dict[str, Kind]:
        return {f"{side}_{name}": kind for name, kind in fields.items()}

    return (
        Choice(
            "least",
            f"{side}_first",
            INT,
            named({"first_time": INT, "first_share": (FLOAT, _ALL)}),
        ),
        Choice("greatest", f"{side}_last", INT, named(_NEWEST)),
        *(
            Choice(
                most,
                f"{side}_{word}",
                (FLOAT, _ALL),
                named({f"{word}_step": (INT, _ALL), f"{word}_time": (INT, _ALL)}),
            )
            for most, word in _EXTREMES
        ),
    )


_EXTREMES: tuple[tuple[Literal["least", "greatest"], str], ...] = (
    ("least", "min"),
    ("greatest", "max"),
)

_NEVER: Mapping[str, float] = {
    "first": NEVER,
    "last": -1,
    **dict.fromkeys(("low", "high", "first_share", "last_share", "min", "max"), np.nan),
}
"""What stands where a side has nothing; 0 in all other fields."""

LAYOUT = Layout(
    first={"first": INT, "time_first": INT, "scale_first": FLOAT},
    last={"last": INT, "time_last": INT, "scale_last": FLOAT},
    add={"n": INT, **_of_sides(_ADD)},
    least={"time_min": INT, **_of_sides(_LEAST)},
    greatest={"time_max": INT, **_of_sides(_GREATEST)},
    choices=(*_choices("on"), *_choices("off")),
)
"""`samples` are those that looked at an element of the side, from its `first` to its `last`: what is said of its newest
is of that. `low` and `high` are the ends of the 95 % intervals of shares, least and greatest. `lost_most` is the most
elements that were inf or NaN in one sample. An `amax` that is NaN counts as infinite.
"""


def empty() -> Cells:
    return np.zeros(0, LAYOUT.dtype)


def of_series(series: GradientSeries) -> Cells:
    """A cell for each sample."""
    cells = np.zeros(len(series), LAYOUT.dtype)
    cells["n"] = 1
    for name in ("first", "last"):
        cells[name], cells[f"time_{name}"] = series.step, series.time
        cells[f"scale_{name}"] = series.scale
    cells["time_min"] = cells["time_max"] = series.time
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
    fields = {
        name: getattr(of, name) for name in ("zeros", "inf", "nan", "sum_squares", "histogram")
    }
    fields |= {name: getattr(of, name) for name in ("parameters", "elements", "looked")}
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
    """The share of each class, [m, 5]; NaN where there is no element."""
    classes = of.classes()
    counts = np.stack([getattr(classes, name) for name in SHARES], axis=-1)
    with np.errstate(invalid="ignore"):
        return np.asarray(counts / classes.total[:, None], np.float64)
