"""Cells of the gradients of each parameter: what the heatmap of parameters draws of stretches of one rank's samples.

A field that is one of each parameter is a vector over them, in the order in which the stream has listed them. Shares
are of the elements looked at in one sample; NaN where there were none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from ampmon.numerics.formats import FP16
from ampmon.numerics.histogram import bin_of, gradient_norm
from ampmon_server.model.aggregates.merging import FLOAT, INT, Cells, Kind, Layout
from ampmon_server.model.series import Floats, Ints


COUNTS = ("looked", "zeros", "subnormal", "on_grid")
LEAST = ("on_grid_min",)
GREATEST = ("zero_max", "subnormal_max", "amax", "norm")
"""`norm` is of the unscaled gradient of one sample. An amax or a norm that is NaN counts as infinite."""
FIELDS = (*COUNTS, *LEAST, *GREATEST)
"""Those that are one of each parameter."""

SUBNORMAL_BINS = bin_of(FP16.exponent_min_normal)
"""So many bins of a histogram, its first, count as `subnormal`: below fp16's least normal number."""

Statistic: TypeAlias = Callable[[str], np.ndarray]
"""Gives by its name a statistic as `ampmon.numerics.histogram.Statistics` has it, or `subnormal`, [m, n]."""


@lru_cache
def layout(parameters: int, fields: tuple[str, ...] = FIELDS) -> Layout:
    """The cells of so many parameters, with all fields that are one of each parameter or some of them."""

    def each(names: tuple[str, ...], kind: str) -> dict[str, Kind]:
        return {name: (kind, parameters) for name in names if name in fields}

    return Layout(
        first={"first": INT},
        last={"last": INT},
        add={"n": INT, **each(COUNTS, INT)},
        least={"time_min": INT, **each(LEAST, FLOAT)},
        greatest={"time_max": INT, **each(GREATEST, FLOAT)},
    )


def fields_of(cells: Cells) -> tuple[str, ...]:
    """Which of `FIELDS` cells have."""
    return tuple(name for name in FIELDS if name in (cells.dtype.names or ()))


def empty() -> Cells:
    """No cell, of no parameter."""
    return np.zeros(0, layout(0).dtype)


def of_samples(
    steps: Ints, times: Ints, scales: Floats, statistic: Statistic, places: Ints, of: Layout
) -> Cells:
    """A cell for each of m samples of n parameters, whose ``places`` [n] are among all that the layout is ``of``."""
    cells = np.zeros(len(steps), of.dtype)
    cells["n"] = 1
    cells["first"] = cells["last"] = steps
    cells["time_min"] = cells["time_max"] = times
    looked = statistic("looked")
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for name in FIELDS:
            if name in COUNTS and name in of.add:
                _wide(cells, name)[:, places] = statistic(name)
            elif name in of.least or name in of.greatest:
                _wide(cells, name)[...] = np.nan
                value = _of_sample(name, statistic, scales[:, None])
                _wide(cells, name)[:, places] = np.where(looked > 0, value, np.nan)
    return cells


def _of_sample(name: str, statistic: Statistic, scales: Floats) -> Floats:
    if name == "amax":
        return _known(statistic("amax"))
    if name == "norm":
        return _known(gradient_norm(statistic("sum_squares"), scales))
    counted = {"on_grid_min": "on_grid", "zero_max": "zeros", "subnormal_max": "subnormal"}[name]
    return np.asarray(statistic(counted) / statistic("looked"), np.float64)


def taken(cells: Cells, places: Sequence[int] | Ints, fields: tuple[str, ...] = FIELDS) -> Cells:
    """Cells of those parameters alone that stand at ``places``, in that order, with ``fields``."""
    fewer = np.zeros(len(cells), layout(len(places), fields).dtype)
    for name in fewer.dtype.names or ():
        if name in FIELDS:
            _wide(fewer, name)[...] = _wide(cells, name)[:, places]
        else:
            fewer[name] = cells[name]
    return fewer


def _wide(cells: Cells, name: str) -> np.ndarray:
    """A field as [m, parameters], a view."""
    values = cells[name]
    return values if values.ndim > 1 else values[:, None]


def _known(values: Floats) -> Floats:
    return np.where(np.isnan(values), np.inf, values)


def grown(cells: Cells, parameters: int, to: int) -> Cells:
    """Cells of ``parameters`` as those of more, of which nothing is known."""
    if parameters == to or not len(cells):
        return cells if parameters == to else np.zeros(0, layout(to).dtype)
    more = np.zeros(len(cells), layout(to).dtype)
    for name in more.dtype.names or ():
        if name in FIELDS:
            _wide(more, name)[...] = 0 if name in COUNTS else np.nan
            _wide(more, name)[:, :parameters] = _wide(cells, name)
        else:
            more[name] = cells[name]
    return more
