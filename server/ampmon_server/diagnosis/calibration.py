"""Calibration: the search for a scale that fits, with which each scaler begins. Skips are its way of searching."""

from __future__ import annotations

import numpy as np

from ampmon_server.case import ScalerCase


QUIET = 32
"""So many updates in a row without a skip end it."""


def calibrated_from(scaler: ScalerCase) -> int:
    """The first step after calibration; beyond the newest where it is not over."""
    first = scaler.first
    if not len(first):
        return 0
    skips = np.flatnonzero(first["skipped"])
    ends = np.append(skips, len(first))
    begins = np.concatenate([[-1], skips])
    quiet = np.flatnonzero(ends - begins > QUIET)
    if not len(quiet):
        return int(first["last"][-1]) + 1
    return int(first["first"][begins[quiet[0]] + 1])
