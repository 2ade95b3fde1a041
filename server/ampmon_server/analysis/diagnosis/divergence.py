"""Finds where a training loss that had fallen rises and stays high. Ignores noise, warm-up and rate cycles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ampmon_server.analysis.diagnosis.outliers import typical
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.scalars import not_finite
from ampmon_server.model.series import Flags, Floats


BESIDE = 4
"""The level of the loss is the median of a cell and this many on each side, so a few outliers do not move it."""
LEAST = 2 * BESIDE + 1
"""This many cells in a row are a level that stays."""
STAYS = 0.1
"""Least share of the cells that are above at the end, and that were below before."""
HALF = 0.5
"""A loss that has risen by this share of its fall has lost what it had learned."""
NOISE = 4.0
"""A fall and a rise must be larger than this many times the noise of the loss."""
ABRUPT = 0.1
"""A rise takes at most this share of the cells. Losses of adversaries and policies drift more slowly."""
FELL, ROSE = 3.0, 2.0
"""Fall and rise must be this many times the largest rise before, because cyclic learning rates keep raising a loss."""
EXPLODES = 10.0
"""A rise of this many times the fall is an explosion, even if the loss then falls to that of an untrained model."""
TAIL = 0.1
"""After the rise, all but this share of the loss must be above all but this share of the loss before."""
_MAD = 1.4826
"""A normal distribution's standard deviation divided by its median absolute deviation."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The loss was at ``low`` until step ``first``, and is at ``high`` from step ``above`` to ``last``.

    ``start`` is the loss at the start. ``high`` is infinite if the loss is no longer finite.
    """

    first: int
    above: int
    last: int
    start: float
    low: float
    high: float


def divergence(cells: Cells) -> Divergence | None:
    """Return the divergence that the cells of a loss show. None while it falls, stays or is too noisy to tell."""
    values = typical(cells)
    n = len(cells)
    least = max(LEAST, int(STAYS * n))
    if n < 3 * least or not np.isfinite(values[:LEAST]).all():
        return None
    level = np.median(sliding_window_view(np.pad(values, BESIDE, mode="edge"), LEAST), axis=1)
    start = float(max(level[0], np.nan_to_num(cells["value_first"][0])))
    lowest = float(level.min())
    below = np.flatnonzero(level < lowest + HALF * (start - lowest))
    above = int(below[-1]) + 1 if len(below) else n
    if n - above < least or len(below) < least:
        return None
    before, after = values[below], values[above:]
    noise = NOISE * _MAD * float(np.median(np.abs(before - level[below])))
    low, high = float(np.median(before[-LEAST:])), float(np.median(after))
    first = _left(level[:above], low + noise)
    fall, rise = float(level[0]) - lowest, high - low
    # Levels just before an explosion belong to it: medians reach into it, and noise hides its first updates.
    steady = first - LEAST if values[first:].max() - low > EXPLODES * fall else first
    risen = _largest_rise(level[:steady])
    far = np.flatnonzero(level[above:] >= min(low + HALF * rise, start + fall))
    most = np.quantile(before, 1 - TAIL, method="higher")
    is_sure = fall > max(noise, FELL * risen) and rise > max(noise, ROSE * risen)
    is_abrupt = len(far) > 0 and above + int(far[0]) - first <= max(LEAST, int(ABRUPT * n))
    if not (is_sure and is_abrupt and np.quantile(after, TAIL, method="lower") > most):
        return None
    begins = _first_step(cells, first, values[first : above + 1] > low + noise)
    return Divergence(begins, int(cells["first"][above]), int(cells["last"][-1]), start, low, high)


def _first_step(cells: Cells, left: int, is_high: Flags) -> int:
    """The step of the rise. The level is high from the cell ``left`` on, but as a median it may be a cell too early.

    Values that are not finite are the last ones of the first cell with any, because such a loss stays not finite.
    """
    lost = not_finite(cells)
    first = left + int(np.argmax(is_high | (lost[left : left + len(is_high)] > 0)))
    while first and lost[first] and lost[first - 1]:
        first -= 1
    return (
        int(cells["last"][first] - lost[first]) + 1 if lost[first] else int(cells["first"][first])
    )


def _left(level: Floats, most: float) -> int:
    """The place from which on the level stays above ``most``, or the end."""
    within = np.flatnonzero(level <= most)
    return int(within[-1]) + 1 if len(within) else len(level)


def _largest_rise(level: Floats) -> float:
    return float((level - np.minimum.accumulate(level)).max(initial=0.0))
