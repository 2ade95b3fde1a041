"""Finds where the loss of a run leaves the noise band of its baseline.

The steps that both runs have are cut into columns. A column's value is the mean of its finite values. Its noise comes
from differences between columns some way apart, in which a trend cancels (pseudo-residuals: Gasser, Sroka and
Jennen-Steinmetz, Biometrika 73, 1986), by their median absolute value (Rousseeuw and Croux, JASA 88, 1993).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ampmon_server.model.aggregates.merging import Cells, aligned_span, starts_of
from ampmon_server.model.aggregates.scalars import mean, merge
from ampmon_server.model.series import Floats


WIDTH = 2.0
"""Half the width of the band, in standard deviations of the noise."""
SMOOTH = 17
"""The level is the median of this many columns. It leaves the band when this many levels in a row are outside."""
APART = SMOOTH // 2
"""Distance between subtracted columns: neighbours may have similar noise."""
NEAR = 41
"""Number of columns around one that give its noise, because noise changes as the loss falls."""
LEAST, COLUMNS = 2 * SMOOTH, 256
"""Fewer columns than `LEAST` show nothing. More than `COLUMNS` are too fine to show a slow drift."""
_MAD = 1.4826
"""A normal distribution's standard deviation divided by its median absolute deviation."""


@dataclass(frozen=True, slots=True)
class BaselineBand:
    """The baseline's cells [c], one per column, and the ``low`` and ``high`` ends of its band."""

    cells: Cells
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a loss left the band, and to which side. ``until`` is the last step compared."""

    step: int
    time: int
    side: Literal["above", "below"]
    until: int


def band(baseline: Cells) -> BaselineBand | None:
    """Return the baseline's band over all of its steps. None if it has too few values."""
    if not len(baseline):
        return None
    columns = _columns(baseline, _span(baseline, baseline))
    columns = columns[np.isfinite(mean(columns))]
    if len(columns) < LEAST:
        return None
    values = mean(columns)
    level, half = smoothed(values, SMOOTH), WIDTH * _noise(values)
    return BaselineBand(columns, level - half, level + half)


def departure(baseline: Cells, run: Cells) -> Departure | int | None:
    """Return where ``run`` leaves the band of ``baseline``.

    Return the last step compared if it stays within, and None if there are too few common values to say.
    """
    if not len(baseline) or not len(run):
        return None
    span = _span(baseline, run)
    base, cells = (_columns(each, span) for each in (baseline, run))
    base = base[np.isfinite(mean(base))]
    _, of_base, of_run = np.intersect1d(
        base["first"] // span, cells["first"] // span, assume_unique=True, return_indices=True
    )
    if len(of_run) < LEAST:
        return None
    base, cells = base[of_base], cells[of_run]
    known, values = mean(base), mean(cells)
    lost = ~np.isfinite(values)
    # Their common trend cancels. A value that is not finite is above any band.
    level = smoothed(np.where(lost, np.inf, values - known), SMOOTH)
    # A run that is noisier overall gets a wider band. The median ignores noise that grows only in an explosion.
    noise, own = _noise(known), _noise(np.where(lost, known, values))
    noise *= max(1.0, float(np.median(own / np.maximum(noise, np.finfo(float).tiny))))
    outside = np.abs(level) > WIDTH * noise
    out = np.flatnonzero(sliding_window_view(outside, SMOOTH).all(axis=1))
    until = int(cells["last"][-1])
    if not len(out):
        return until
    at = int(out[0])
    side: Literal["above", "below"] = "above" if level[at] > 0 else "below"
    return Departure(int(cells["first"][at]), int(cells["time_first"][at]), side, until)


def smoothed(values: Floats, width: int) -> Floats:
    """Return the running median [n]: of each value and those within half a ``width`` of it."""
    n = len(values)
    half = min(width // 2, (n - 1) // 2)
    if half < 1:
        return values
    before = [np.median(values[: place + half + 1]) for place in range(half)]
    after = [np.median(values[place - half :]) for place in range(n - half, n)]
    return np.concatenate([before, _medians(values, 2 * half + 1), after])


def _medians(values: Floats, width: int) -> Floats:
    return np.asarray(np.median(sliding_window_view(values, width), axis=1), np.float64)


def _noise(values: Floats) -> Floats:
    """The standard deviation of the noise around each of n values, [n]. n is at least `LEAST`."""
    middle = values[APART:-APART]
    off = np.abs(middle - (values[: -2 * APART] + values[2 * APART :]) / 2)
    noise = _MAD / np.sqrt(1.5) * _medians(off, min(NEAR, len(off)))
    before = (len(values) - len(noise)) // 2
    return np.pad(noise, (before, len(values) - len(noise) - before), mode="edge")


def _span(one: Cells, other: Cells) -> int:
    """Steps per column, so that there are at most `COLUMNS` columns, and no more than the sparser run has values."""
    low = int(max(one["first"][0], other["first"][0]))
    high = int(min(one["last"][-1], other["last"][-1]))
    shared = [
        int(cells["n"][(cells["last"] >= low) & (cells["first"] <= high)].sum())
        for cells in (one, other)
    ]
    return int(aligned_span(low, max(low, high), max(2, min(COLUMNS, *shared))))


def _columns(cells: Cells, span: int) -> Cells:
    return merge(cells, starts_of(cells["first"] // span))
