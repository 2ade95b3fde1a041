"""Calibration: the search for a scale that fits, with which each scaler begins. Skips are its way of searching."""

from __future__ import annotations

import numpy as np

from ampmon_server.analysis.diagnosis.updates import GROW, MANUAL, held_scale, whole_skips
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.case import ScalePolicy, ScalerCase


QUIET = 10
"""So many updates in a row without a skip end it."""


def calibrated_from(scaler: ScalerCase) -> int:
    """The first step after calibration; beyond the newest where it is not over.

    What ends it is `QUIET`, a scale that grows, that is set by hand or that a skip leaves as it was, or an update that
    goes through below 1: what comes then is no search any more.
    """
    first = scaler.first
    if not len(first):
        return 0
    quiet = _quiet_from(first)
    other = np.flatnonzero(_ends_search(first, scaler.policy))
    at = min(quiet, int(other[0]) if len(other) else len(first))
    return int(first["first"][at]) if at < len(first) else int(first["last"][-1]) + 1


def _quiet_from(cells: Cells) -> int:
    """The place of the first cell after which nothing is skipped for `QUIET` updates; their number if there is none."""
    skips = np.flatnonzero(cells["skipped"])
    before = np.append(0, np.cumsum(cells["n"]))
    begins = np.append(0, skips + 1)
    quiet = before[np.append(skips, len(cells))] - before[begins]
    found = np.flatnonzero(quiet >= QUIET)
    return int(begins[found[0]]) if len(found) else len(cells)


def _ends_search(cells: Cells, policy: ScalePolicy) -> np.ndarray:
    moved = (cells["moves"][:, GROW] > 0) | (cells["moves"][:, MANUAL] > 0)
    below = (cells["scale_first"] < 1) & ~whole_skips(cells)
    return np.asarray(moved | held_scale(cells, policy) | below)
