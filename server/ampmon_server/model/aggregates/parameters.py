"""Cells of each parameter's gradients, each of consecutive samples of one rank, for the heatmap of parameters.

A per-parameter field is a vector in the order in which the stream listed the parameters. A share is of the elements
looked at in one sample, and NaN if there were none.
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
"""`norm` is of the unscaled gradient of one sample. An `amax` or `norm` of NaN counts as infinite."""
FIELDS = (*COUNTS, *LEAST, *GREATEST)
"""All per-parameter fields."""

SUBNORMAL_BINS = bin_of(FP16.exponent_min_normal)
"""Number of first histogram bins that count as `subnormal`: they are below fp16's least normal number."""

Statistic: TypeAlias = Callable[[str], np.ndarray]
"""Returns a statistic [m, n] by name: a field of `ampmon.numerics.histogram.Statistics`, or `subnormal`."""


@lru_cache
def layout(parameters: int, fields: tuple[str, ...] = FIELDS) -> Layout:
    """Return the layout of cells for a number of parameters, with the per-parameter ``fields``."""

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
    """Return which of `FIELDS` the cells have."""
    return tuple(name for name in FIELDS if name in (cells.dtype.names or ()))


def empty() -> Cells:
    """Return an empty array of cells for zero parameters."""
    return np.zeros(0, layout(0).dtype)


def of_samples(
    steps: Ints, times: Ints, scales: Floats, statistic: Statistic, places: Ints, of: Layout
) -> Cells:
    """Return a cell for each of m samples of n parameters, at ``places`` [n] among those of the layout ``of``."""
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
    """Return cells of only the parameters at ``places``, in that order, with only ``fields``."""
    fewer = np.zeros(len(cells), layout(len(places), fields).dtype)
    for name in fewer.dtype.names or ():
        if name in FIELDS:
            _wide(fewer, name)[...] = _wide(cells, name)[:, places]
        else:
            fewer[name] = cells[name]
    return fewer


def _wide(cells: Cells, name: str) -> np.ndarray:
    """A field as [m, parameters], as a view: one of a single parameter has no second axis."""
    values = cells[name]
    return values if values.ndim > 1 else values[:, None]


def _known(values: Floats) -> Floats:
    return np.where(np.isnan(values), np.inf, values)


def grown(cells: Cells, parameters: int, to: int) -> Cells:
    """Widen cells of ``parameters`` parameters ``to`` more, with no data for the new ones."""
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
