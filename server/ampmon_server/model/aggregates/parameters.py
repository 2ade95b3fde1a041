"""Cells of the gradients of each parameter: what the heatmap of parameters draws of stretches of one rank's samples.

A field that is one of each parameter is a vector over them, in the order in which the stream has told of them. Shares
are of the elements looked at in one sample; NaN where there were none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ampmon.numerics.histogram import classify, gradient_norm
from ampmon_server.model.aggregates.merging import FLOAT, INT, Cells, Kind, Layout
from ampmon_server.model.series import Floats, Ints


COUNTS = ("looked", "zeros", "subnormal", "on_grid")
LEAST = ("on_grid_min",)
GREATEST = ("zero_max", "subnormal_max", "amax", "norm")
"""`norm` is of the unscaled gradient of one sample. An amax or a norm that is NaN counts as infinite."""


@lru_cache
def layout(parameters: int) -> Layout:
    """The cells of so many parameters."""

    def each(names: tuple[str, ...], kind: str) -> dict[str, Kind]:
        return dict.fromkeys(names, (kind, parameters))

    return Layout(
        first={"first": INT},
        last={"last": INT},
        add={"n": INT, **each(COUNTS, INT)},
        least={"time_min": INT, **each(LEAST, FLOAT)},
        greatest={"time_max": INT, **each(GREATEST, FLOAT)},
    )


def empty() -> Cells:
    """No cell, of no parameter."""
    return np.zeros(0, layout(0).dtype)


def of_samples(
    steps: Ints,
    times: Ints,
    scales: Floats,
    statistics: dict[str, np.ndarray],
    places: Ints,
    parameters: int,
) -> Cells:
    """A cell for each of m samples of n parameters, whose ``places`` [n] are among all ``parameters``.

    ``statistics`` are arrays as `ampmon.numerics.histogram.Statistics` has them, [m, n] and [m, n, 64].
    """
    cells = np.zeros(len(steps), layout(parameters).dtype)
    cells["n"] = 1
    cells["first"] = cells["last"] = steps
    cells["time_min"] = cells["time_max"] = times
    looked = statistics["looked"]
    lost = statistics["inf"] + statistics["nan"]
    classes = classify(statistics["histogram"], zeros=statistics["zeros"], not_finite=lost)
    subnormal = classes.subnormal + classes.below_grid
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        told = {
            "looked": looked,
            "zeros": statistics["zeros"],
            "subnormal": subnormal,
            "on_grid": statistics["on_grid"],
            "on_grid_min": statistics["on_grid"] / looked,
            "zero_max": statistics["zeros"] / looked,
            "subnormal_max": subnormal / looked,
            "amax": _known(statistics["amax"]),
            "norm": _known(gradient_norm(statistics["sum_squares"], scales[:, None])),
        }
    for name in (*LEAST, *GREATEST):
        _wide(cells, name)[...] = np.nan
    for name, values in told.items():
        kept = values if name in COUNTS else np.where(looked > 0, values, np.nan)
        _wide(cells, name)[:, places] = kept
    return cells


def taken(cells: Cells, places: Sequence[int]) -> Cells:
    """Cells of those parameters alone that stand at ``places``, in that order."""
    fewer = np.zeros(len(cells), layout(len(places)).dtype)
    for name in fewer.dtype.names or ():
        if name in {*COUNTS, *LEAST, *GREATEST}:
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
        if name in {*COUNTS, *LEAST, *GREATEST}:
            _wide(more, name)[...] = 0 if name in COUNTS else np.nan
            _wide(more, name)[:, :parameters] = _wide(cells, name)
        else:
            more[name] = cells[name]
    return more
