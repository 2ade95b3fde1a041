"""The range of loss scales within cells of gradient samples."""

from __future__ import annotations

import numpy as np

from ampmon_server.charts.parts.source import Window
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.series import Floats


def scales(cells: Cells, window: Window) -> tuple[Floats, Floats]:
    """Return the least and the greatest scale in each cell of samples.

    A single sample has its own scale. A cell of several also covers the scales of the updates in its stretch.
    """
    ends = np.stack([cells["scale_first"], cells["scale_last"]])
    ends = np.where(ends > 0, ends, np.nan)
    least, most = np.fmin(*ends), np.fmax(*ends)
    merged = np.flatnonzero(cells["n"] > 1)
    updates = window.updates[np.argsort(window.updates["first"], kind="stable")]
    if not len(merged) or not len(updates):
        return least, most
    first = np.searchsorted(updates["first"], cells["first"][merged], side="right") - 1
    after = np.searchsorted(updates["first"], cells["last"][merged], side="right")
    places = np.stack([np.maximum(first, 0), np.maximum(after, 1)], axis=1).ravel()
    beside = np.append(updates["scale_min"], np.nan), np.append(updates["scale_max"], np.nan)
    least[merged] = np.fmin(least[merged], np.fmin.reduceat(beside[0], places)[::2])
    most[merged] = np.fmax(most[merged], np.fmax.reduceat(beside[1], places)[::2])
    return np.where(least > 0, least, np.nan), most
