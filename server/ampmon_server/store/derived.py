"""What fp16 makes of sampled gradients, as shares of the elements looked at. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampmon import histogram
from ampmon_server.series import Floats, Totals


@dataclass(frozen=True, slots=True)
class Derived:
    """[m] each. Where ``known`` is false nothing was looked at, and the rest is NaN."""

    known: npt.NDArray[np.bool_]
    zero: Floats
    below_grid: Floats
    subnormal: Floats
    headroom_bits: Floats


def derive(totals: Totals) -> Derived:
    """Shares and headroom of m samples."""
    known = totals.looked > 0
    looked = np.where(known, totals.looked, 1)
    classes = totals.classes()

    def share(counts: npt.NDArray[np.int64]) -> Floats:
        return np.where(known, counts / looked, np.nan)

    return Derived(
        known=known,
        zero=share(classes.zero),
        below_grid=share(classes.below_grid),
        subnormal=share(classes.subnormal),
        headroom_bits=np.where(known, histogram.headroom_bits(totals.amax), np.nan),
    )


def norm(on_grid: Totals, off_grid: Totals, scale: Floats) -> Floats:
    """The unscaled norm of all gradients, [m]."""
    with np.errstate(over="ignore", invalid="ignore"):
        return histogram.gradient_norm(on_grid.sum_squares + off_grid.sum_squares, scale)
