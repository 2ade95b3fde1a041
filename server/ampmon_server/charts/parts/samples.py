"""Sampled gradients in pixel columns: those that charts judge, those of each parameter, and their loss scales.

Charts judge the gradients on fp16's grid or, if there are none, the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon.numerics.histogram import Classes, classify
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.aggregates.gradients import LAYOUT, SHARES, SIDES, Side
from ampmon_server.model.aggregates.merging import Cells, aligned_span, starts_of
from ampmon_server.model.aggregates.parameters import fields_of, layout
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, plural


GRID_DEFINITION = (
    "A parameter is representable when fp16 holds at least 99 % of its gradient's elements exactly. "
    "Other gradients were computed or summed in fp32 (LayerNorm, embeddings, tied weights). "
    "They are left out: their small values say nothing about fp16."
)


Place: TypeAlias = Literal["first", "last", "min", "max"]

COLUMN_PIXELS = 4
"""Samples within this many pixels share a column."""


@dataclass(frozen=True, slots=True)
class JudgedGradients:
    """The pixel columns [c] of a window that have gradients to judge.

    ``cells`` are of `ampmon_server.model.aggregates.gradients`. ``side`` says which of their fields are judged.
    ``span`` is the width of a column along x.
    """

    window: Window
    cells: Cells
    side: Side
    span: float

    def __len__(self) -> int:
        """The number of samples, not of columns."""
        return int(self.of("samples").sum())

    def of(self, name: str) -> npt.NDArray[Any]:
        """Return a field of the judged side, [c] or [c, ...]."""
        values: npt.NDArray[Any] = self.cells[f"{self.side}_{name}"]
        return values

    def step(self, place: Place) -> Ints:
        """Return the step of each column's first or last sample, [c], or of its least or greatest shares, [c, 5].

        The 5 are the classes of `SHARES`.
        """
        return self.of(place if place in {"first", "last"} else f"{place}_step")

    def at(self, place: Place) -> Ints | Floats:
        """Return the x of each column's first or last sample, [c], or of its least or greatest shares, [c, 5]."""
        return self.window.x.of(self.step(place), self.of(f"{place}_time"))

    @property
    def x(self) -> Ints | Floats:
        """The x where each column begins."""
        return self.at("first")

    @property
    def centres(self) -> Ints | Floats:
        """The x where a heatmap centres each column."""
        return centres(self.x, self.at("last"), self.span)

    @property
    def pieces(self) -> tuple[Floats, Floats]:
        """The x where each column starts and ends, if its value is held until the next one."""
        return self.window.held(self.x)

    @property
    def apart(self) -> tuple[Cells, Ints]:
        """The cells before they shared columns, in order of x, and where those of each column begin, [c]."""
        cells = self.window.gradients
        cells = cells[cells[f"{self.side}_samples"] > 0]
        keys = np.floor_divide(self.window.x.at(cells, "first"), self.span)
        return cells, starts_of(keys.astype(np.int64))

    @property
    def newest_column(self) -> int:
        """The column with the newest sample. If the clock was set back, that is not the last one on a time axis."""
        return int(self.of("last").argmax())

    @property
    def newest(self) -> JudgedGradients:
        """Only the column with the newest sample."""
        row = self.newest_column
        return replace(self, cells=self.cells[row : row + 1])

    @property
    def left_out(self) -> int:
        """The number of parameters off the grid at the newest sample that are not judged."""
        newest = self.newest.cells
        beside = self.side == "on" and newest["off_last"][0] == newest["on_last"][0]
        return int(newest["off_parameters"][0]) if beside else 0

    @property
    def sampled(self) -> bool:
        """Whether only some of the elements were sampled."""
        return bool(self.of("error").any())

    def classes(self) -> Classes:
        """Count elements by class over all samples of each column, [c]."""
        lost = self.of("inf") + self.of("nan")
        return classify(self.of("histogram"), zeros=self.of("zeros"), not_finite=lost)


def judge(window: Window) -> JudgedGradients | None:
    """Return what to judge in a window; None if no gradient was sampled in it."""
    cells = window.gradients
    side = _side(cells)
    cells = cells[cells[f"{side}_samples"] > 0]
    if not len(cells):
        return None
    columns, span = window.columns(cells, window.view.columns // COLUMN_PIXELS, LAYOUT)
    return JudgedGradients(window, columns, side, span)


def _side(cells: Cells) -> Side:
    """Prefer gradients on the grid. If all of them overflowed, they say nothing, but the others may."""
    for side in SIDES:
        if cells[f"{side}_histogram"].any() or cells[f"{side}_zeros"].any():
            return side
    return "on" if cells["on_samples"].any() else "off"


def scope(judged: JudgedGradients) -> str:
    """Describe which gradients are judged, at the newest sample."""
    newest = judged.newest
    elements, looked, parameters = (
        int(newest.of(name)[0]) for name in ("elements", "looked", "parameters")
    )
    seen = f", {count(looked)} of them sampled," if looked < elements else ""
    of = f"Covers {plural(elements, 'element')}{seen} in {plural(parameters, 'parameter')}"
    if newest.of("last_share")[0][SHARES.index("not_finite")] == 1:
        return f"{of}, all of them inf or NaN: nothing to judge."
    if judged.side == "off":
        return (
            f"{of}, none of them fp16-representable: these gradients were computed or summed in fp32, "
            "so their small values say nothing about fp16."
        )
    rest = f"; {plural(judged.left_out, 'other parameter')} left out" if judged.left_out else ""
    return f"{of} representable in fp16{rest}."


def centres(first: Ints | Floats, last: Ints | Floats, span: float) -> Ints | Floats:
    """Return the centres of a heatmap's columns [c] from the x of the first and last sample in each.

    If every column has one sample, its centre is that sample. Otherwise it is the middle of the column's ``span`` of x.
    Plotly draws evenly spaced columns in half the time, as an image with one pixel a cell.
    """
    if (first == last).all():
        return first
    # A whole number is the centre of an interval of length 1.
    half = (span - 1) / 2 if first.dtype.kind == "i" else span / 2
    return np.floor_divide(first, span) * span + half


def in_window(cells: Cells, window: Window) -> tuple[Cells, Ints | Floats]:
    """Return the cells in a window in order of x, and the x of each."""
    at = window.x.of(cells["first"], cells["time_min"])
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


def scales(cells: Cells, window: Window) -> tuple[Floats, Floats]:
    """Return the least and the greatest scale in each cell of samples.

    A single sample has its own scale. A cell of several also covers the scales of the updates in its stretch.
    """
    ends = np.stack([cells["scale_first"], cells["scale_last"]])
    ends = np.where(ends > 0, ends, np.nan)
    least, most = np.fmin(*ends), np.fmax(*ends)
    merged = np.flatnonzero(cells["n"] > 1)
    updates = window.in_steps
    if not len(merged) or not len(updates):
        return least, most
    first = np.searchsorted(updates["first"], cells["first"][merged], side="right") - 1
    after = np.searchsorted(updates["first"], cells["last"][merged], side="right")
    places = np.stack([np.maximum(first, 0), np.maximum(after, 1)], axis=1).ravel()
    # `reduceat` takes no place past the end, hence the NaN. Odd results lie between stretches.
    beside = np.append(updates["scale_min"], np.nan), np.append(updates["scale_max"], np.nan)
    least[merged] = np.fmin(least[merged], np.fmin.reduceat(beside[0], places)[::2])
    most[merged] = np.fmax(most[merged], np.fmax.reduceat(beside[1], places)[::2])
    return np.where(least > 0, least, np.nan), most
