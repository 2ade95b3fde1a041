"""Samples of parameters merged into pixel columns, for the charts of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ampmon_server.charts.parts.layout import centres
from ampmon_server.charts.parts.source import Window, XAxis
from ampmon_server.model.aggregates.merging import Cells, starts_of
from ampmon_server.model.aggregates.parameters import fields_of, layout
from ampmon_server.model.column_width import aligned_span
from ampmon_server.model.series import Floats, Ints


def in_window(cells: Cells, axis: XAxis, window: Window) -> tuple[Cells, Ints | Floats]:
    """Return the cells in a window in order of x, and the x of each."""
    at = axis.of(cells["first"], cells["time_min"])
    order = np.argsort(at, kind="stable")
    order = order[(at[order] >= window.low) & (at[order] <= window.high)]
    return cells[order], at[order]


def merged(
    cells: Cells, at: Ints | Floats, parameters: int, window: Window, columns: int
) -> tuple[Cells, Ints | Floats]:
    """Merge cells in order of x into at most ``columns`` columns (2 or more). Return them and their centres."""
    span = aligned_span(window.low, window.high, max(columns, 2))
    starts = starts_of(np.floor_divide(at, span).astype(np.int64))
    ends = np.append(starts, len(at))[1:] - 1
    of = layout(parameters, fields_of(cells))
    return of.merge(cells, starts), centres(at[starts], at[ends], span)


def wide(cells: Cells, name: str) -> npt.NDArray[Any]:
    """Return a field of each parameter, [cells, parameters], also if there is only one parameter."""
    values: npt.NDArray[Any] = cells[name]
    return values if values.ndim > 1 else values[:, None]
