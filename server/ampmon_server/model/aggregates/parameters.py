"""Cells of each parameter's gradients, each of consecutive samples of one rank, for the heatmap of parameters.

A per-parameter field is a vector in the order in which the stream listed the parameters. A share is of the elements
looked at in one sample, and NaN if there were none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ampmon.numerics.sampling_error import Floats, Ints
from ampmon_server.model.aggregates.merging import FLOAT, INT, Cells, Kind, Layout
from ampmon_server.model.parameter_statistics import STATISTICS, ColumnOf


COUNTS = ("looked", "zeros", "subnormal", "on_grid")
LEAST = tuple(each.stored for each in STATISTICS.values() if each.least)
GREATEST = tuple(each.stored for each in STATISTICS.values() if not each.least)
"""Fields with the worst sample of a statistic."""
FIELDS = (*COUNTS, *LEAST, *GREATEST)
"""All per-parameter fields."""

_STORED = {each.stored: each for each in STATISTICS.values()}


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


@lru_cache
def dtype_of(names: tuple[str, ...], parameters: int) -> np.dtype[Any]:
    """Return the type of cells with fields of these names, in their order.

    A field that is not known has a number for each parameter.
    """
    one = ("first", "last", "n", "time_min", "time_max")
    whole = (*one, *COUNTS)
    return np.dtype(
        [
            (name, INT if name in whole else FLOAT, () if name in one else (parameters,))
            for name in names
        ]
    )


def empty() -> Cells:
    """Return an empty array of cells for zero parameters."""
    return np.zeros(0, layout(0).dtype)


def of_samples(
    steps: Ints, times: Ints, scales: Floats, columns: ColumnOf, places: Ints | slice, of: Layout
) -> Cells:
    """Return a cell for each of m samples of n parameters, at ``places`` [n] among those of the layout ``of``.

    ``columns`` are [m, n].
    """
    cells = np.zeros(len(steps), of.dtype)
    cells["n"] = 1
    cells["first"] = cells["last"] = steps
    cells["time_min"] = cells["time_max"] = times
    for name in fields_of(cells):
        if name in COUNTS:
            wide(cells, name)[:, places] = columns(name)
        else:
            wide(cells, name)[...] = np.nan
            wide(cells, name)[:, places] = _STORED[name].values(columns, scales[:, None])
    return cells


def taken(cells: Cells, places: Sequence[int] | Ints, fields: tuple[str, ...] = FIELDS) -> Cells:
    """Return cells of only the parameters at ``places``, in that order, with only ``fields``.

    Cells of an earlier time may lack some of both: these values are unknown.
    """
    of = np.asarray(places, np.int64)
    found = np.zeros(len(cells), layout(len(of), fields).dtype)
    for name in found.dtype.names or ():
        if name not in FIELDS:
            found[name] = cells[name]
            continue
        wide(found, name)[...] = 0 if name in COUNTS else np.nan
        if name in (cells.dtype.names or ()):
            known = wide(cells, name)
            held = slice(None) if of.max(initial=-1) < known.shape[1] else of < known.shape[1]
            wide(found, name)[:, held] = known[:, of[held]]
    return found


def wide(cells: Cells, name: str) -> npt.NDArray[Any]:
    """Return a view of a field as [m, parameters]: a field of a single parameter has no second axis."""
    values: npt.NDArray[Any] = cells[name]
    return values if values.ndim > 1 else values[:, None]
