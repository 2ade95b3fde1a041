"""What a sample of runs says of all elements: the variance of a share, and an interval around it. Pure; no torch.

A sample is m of a tensor's runs of 16 neighbours, drawn at random without replacement: cluster sampling with clusters
of one size (Cochran, Sampling Techniques, 3rd ed. 1977, ch. 9). Several tensors are strata, each of the weight that it
has among all elements (ch. 5). Shapes broadcast throughout.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ampmon.numerics.histogram import RUN, Floats, Ints


Z_95 = 1.959963984540054
"""The standard normal quantile of a two-sided 95 % interval."""

_EACH_BYTE = np.uint64(0x0101010101010101)


def run_counts(member: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """How many elements of each run are members: bool [16 * m], runs one after another, to int64 [m]."""
    # Eight flags are added up at once, as the bytes of one integer: a sum along rows of 16 takes ten times as long.
    halves = member.view(np.uint64).reshape(-1, RUN // 8)
    together = (halves[:, 0] + halves[:, 1]) * _EACH_BYTE
    return np.asarray(together >> np.uint64(56), np.int64)


def elements_of(looked: Ints, numel: Ints, sample: int | None, samples: int = 1) -> Ints:
    """How many elements those looked at stand for, [..., n], where ``sample`` are looked at of tensors with more.

    Where fewer were looked at there were no more: a sparse gradient has only some rows. Of several ``samples`` together
    some may have had none of a tensor; they are looked at in whole runs, so what is over a multiple of a sample is few.
    """
    if sample is None:
        return looked
    each = np.maximum(np.minimum(numel, sample), 1)
    whole = np.minimum(looked // each, samples)
    dense = looked - whole * each < RUN * np.maximum(whole, 1)
    return np.asarray(np.where(dense, np.maximum(looked, whole * numel), looked), np.int64)


def grain(looked: Ints, numel: Ints) -> Floats:
    """(1 - f) / m for m runs, a part f of a tensor's: the variance of their mean, over that between runs.

    Times p (1 - p) it is the most that the variance of a share p can be: were the elements of each run all alike. 0
    where every element was looked at.
    """
    runs = np.maximum(looked / RUN, 1.0)
    unseen = 1.0 - np.minimum(runs / np.maximum(np.ceil(np.asarray(numel) / RUN), 1.0), 1.0)
    return np.asarray(np.where(looked >= numel, 0.0, unseen / runs), np.float64)


def share_variance(counts: Ints, squares: Ints, looked: Ints, numel: Ints) -> Floats:
    """Variance of a tensor's share ``counts / looked``, estimated without bias from how runs differ (Cochran, eq. 9.2).

    ``squares`` is the sum over runs of the square of what each has of ``counts``; where that is not known (less than
    ``counts``, which it cannot be), and of one run alone, elements of a run are taken for alike.
    """
    runs = np.maximum(looked / RUN, 1.0)
    bounded = np.where((squares >= counts) & (runs >= 2), squares, RUN * counts)
    between = np.maximum(bounded - counts * (counts / runs), 0.0) / np.maximum(runs - 1.0, 1.0)
    return np.asarray(between / RUN**2 * grain(looked, numel), np.float64)


def interval(
    share: Floats, variance: Floats, grain: Floats, z: float = Z_95
) -> tuple[Floats, Floats]:
    """Low and high end of a share's interval: Wilson's, with the number of independent elements that has its variance.

    That number is p (1 - p) / variance (Kish, Survey Sampling, 1965), at least 1 / ``grain``, which it is where none or
    all are in the class and nothing is known of its variance. Wilson's interval holds its coverage for rare classes,
    where the symmetric one does not (Franco et al., J. Survey Statistics and Methodology 7, 2019). [share, share] where
    every element was looked at.
    """
    spread = share * (1.0 - share)
    inside = spread > 0
    each = np.where(inside, np.minimum(variance / np.where(inside, spread, 1.0), grain), grain)
    scaled = z * z * each
    centre = (share + scaled / 2) / (1 + scaled)
    half = np.sqrt(scaled * spread + scaled * scaled / 4) / (1 + scaled)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


def standard_error(share: Floats, variance: Floats, grain: Floats) -> Floats:
    """A share's standard error as its interval has it: the root of the variance, but not 0 for a class not seen."""
    low, high = interval(share, variance, grain)
    return np.asarray((high - low) / (2 * Z_95), np.float64)
