"""Estimates the error of a sample of runs: the variance of a share, and an interval around it. Pure; no torch.

A sample is m of a tensor's runs of 16 neighbours, drawn at random without replacement. This is cluster sampling with
clusters of one size (Cochran, Sampling Techniques, 3rd ed. 1977, ch. 9). Several tensors are strata, each weighted by
its share of all elements (ch. 5). Shapes broadcast throughout.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt


Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

RUN = 16
"""Neighbouring elements that a sample takes together: a cache line of fp32. Their values are not independent."""

Z_95 = 1.959963984540054
"""The standard normal quantile of a two-sided 95 % interval."""

_EACH_BYTE = np.uint64(0x0101010101010101)


def run_counts(member: npt.NDArray[np.bool_]) -> Ints:
    """Return how many elements of each run are members: from bool [16 * m], run after run, to int64 [m]."""
    # Add eight flags at once, as the bytes of one integer. A sum along rows of 16 takes ten times as long.
    halves = member.view(np.uint64).reshape(-1, RUN // 8)
    # The top byte of the product is the sum of all bytes. It is at most 16, so none carries over.
    together = (halves[:, 0] + halves[:, 1]) * _EACH_BYTE
    return np.asarray(together >> np.uint64(56), np.int64)


def elements_of(looked: Ints, numel: Ints, sample: int | None, samples: int = 1) -> Ints:
    """Return how many elements the ``looked`` ones represent, [..., n].

    ``sample`` is how many are looked at in a larger tensor; None means all. If fewer were looked at, there were no
    more: a sparse gradient has only some rows. ``looked`` may cover several ``samples`` together, and some of these may
    lack a tensor. Samples take whole runs, so ``looked`` is only slightly above a multiple of ``sample``.
    """
    if sample is None:
        return looked
    each = np.maximum(np.minimum(numel, sample), 1)
    whole = np.minimum(looked // each, samples)
    dense = looked - whole * each < RUN * np.maximum(whole, 1)
    return np.asarray(np.where(dense, np.maximum(looked, whole * numel), looked), np.int64)


def sampling_weight(looked: Ints, elements: Ints) -> Floats:
    """Return how many elements each one that was looked at represents, [..., n]."""
    return np.asarray(elements / np.maximum(looked, 1), np.float64)


def grain(looked: Ints, numel: Ints) -> Floats:
    """Return (1 - f) / m for m runs, a fraction f of a tensor's: the variance of their mean over that between runs.

    Times p (1 - p), it is the largest possible variance of a share p, reached if the elements of each run are all
    alike. 0 where every element was looked at.
    """
    runs = np.maximum(looked / RUN, 1.0)
    unseen = 1.0 - np.minimum(runs / np.maximum(np.ceil(np.asarray(numel) / RUN), 1.0), 1.0)
    return np.asarray(np.where(looked >= numel, 0.0, unseen / runs), np.float64)


def share_variance(counts: Ints, squares: Ints, looked: Ints, numel: Ints) -> Floats:
    """Return an unbiased estimate of the variance of a tensor's share ``counts / looked`` (Cochran, eq. 9.2).

    It comes from the differences between runs. ``squares`` is the sum, over the runs, of the square of each run's part
    of ``counts``. A value below ``counts``, which is impossible, means unknown. If it is unknown or there is only one
    run, the elements of a run are assumed to be alike.
    """
    runs = np.maximum(looked / RUN, 1.0)
    bounded = np.where((squares >= counts) & (runs >= 2), squares, RUN * counts)
    between = np.maximum(bounded - counts * (counts / runs), 0.0) / np.maximum(runs - 1.0, 1.0)
    return np.asarray(between / RUN**2 * grain(looked, numel), np.float64)


def interval(share: Floats, variance: Floats, grain: Floats) -> tuple[Floats, Floats]:
    """Return the low and high end of a share's Wilson interval of 95 %.

    The interval is that of as many independent elements as would have the same variance. Their number is
    p (1 - p) / variance (Kish, Survey Sampling, 1965), and at least 1 / ``grain``. It is 1 / ``grain`` where no or all
    elements are in the class, because the variance is then unknown. Wilson's interval keeps its coverage for rare
    classes, where the symmetric one does not (Franco et al., J. Survey Statistics and Methodology 7, 2019). The result
    is [share, share] where every element was looked at.
    """
    spread = share * (1.0 - share)
    inside = spread > 0
    each = np.where(inside, np.minimum(variance / np.where(inside, spread, 1.0), grain), grain)
    scaled = Z_95 * Z_95 * each
    centre = (share + scaled / 2) / (1 + scaled)
    half = np.sqrt(scaled * spread + scaled * scaled / 4) / (1 + scaled)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


def standard_error(share: Floats, variance: Floats, grain: Floats) -> Floats:
    """Return a share's standard error from its interval: the root of the variance, but not 0 for an unseen class."""
    low, high = interval(share, variance, grain)
    return np.asarray((high - low) / (2 * Z_95), np.float64)
