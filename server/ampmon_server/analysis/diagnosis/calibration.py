"""Finds the end of calibration: each scaler first searches for a scale that fits, by skipping updates."""

from __future__ import annotations

import numpy as np

from ampmon_server.analysis.diagnosis.updates import GROW, MANUAL, held_scale, whole_skips
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.case import ScalePolicy, ScalerCase


QUIET = 10
"""This many updates in a row without a skip end calibration."""


def calibrated_from(scaler: ScalerCase) -> int:
    """Return the first step after calibration. If it is not over, that is after all updates in `first`.

    It ends with `QUIET` updates without a skip, with a scale that grows, is set by hand or stays after a skip, or with
    an update that is applied at a scale below 1.
    """
    first = scaler.first
    if not len(first):
        return 0
    quiet = _quiet_from(first)
    other = np.flatnonzero(_ends_search(first, scaler.policy))
    at = min(quiet, int(other[0]) if len(other) else len(first))
    return int(first["first"][at]) if at < len(first) else int(first["last"][-1]) + 1


def _quiet_from(cells: Cells) -> int:
    """The place of the first cell from which on `QUIET` updates have no skip. The number of cells if there is none."""
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
