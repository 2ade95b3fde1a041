"""Derives shares of fp16 classes, headroom and the norm from sampled gradients. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampmon.numerics import histogram
from ampmon_server.model.series import Floats, Totals


@dataclass(frozen=True, slots=True)
class Derived:
    """Shares and headroom of m samples, [m] each. If ``known`` is false nothing was looked at, and the rest is NaN.

    Each share has a standard error, 0 if every element was looked at.
    """

    known: npt.NDArray[np.bool_]
    zero: Floats
    below_grid: Floats
    subnormal: Floats
    zero_error: Floats
    below_grid_error: Floats
    subnormal_error: Floats
    headroom_bits: Floats


def derive(totals: Totals) -> Derived:
    known = totals.looked > 0
    zero, below_grid, subnormal = np.where(known, totals.shares().T, np.nan)
    errors = np.where(known, totals.errors().T, np.nan)
    return Derived(
        known=known,
        zero=zero,
        below_grid=below_grid,
        subnormal=subnormal,
        zero_error=errors[0],
        below_grid_error=errors[1],
        subnormal_error=errors[2],
        headroom_bits=np.where(known, histogram.headroom_bits(totals.amax), np.nan),
    )


def norm(on_grid: Totals, off_grid: Totals, scale: Floats) -> Floats:
    """The unscaled norm of all gradients, [m]."""
    with np.errstate(over="ignore", invalid="ignore"):
        return histogram.gradient_norm(on_grid.sum_squares + off_grid.sum_squares, scale)
