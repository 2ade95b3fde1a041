"""Finds the gradients that are not finite, before clipping spreads one inf to all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ampmon.numerics.histogram import Statistics
from ampmon.wire import Culprit


def count(gradients: Sequence[torch.Tensor], indices: Sequence[int]) -> list[Culprit]:
    """Return the gradients with inf or NaN elements, and their counts. Reads every element: for skips on a CPU."""
    culprits = []
    for index, gradient in zip(indices, gradients, strict=True):
        if torch.isfinite(gradient).all():
            continue
        nan = int(torch.isnan(gradient).sum())
        inf = int(torch.isinf(gradient).sum())
        culprits.append(Culprit(index, inf, nan))
    return culprits


def flag(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the largest magnitude in each of n gradients of one device, float32 [n]. Only enqueues work.

    It is NaN if any element is.
    """
    return torch.stack(torch._foreach_norm(list(gradients), math.inf)).float()


def from_flags(magnitudes: torch.Tensor, indices: Sequence[int]) -> list[Culprit]:
    """Return the culprits in a host copy of `flag`'s result: which gradients and which kind, without counts.

    A NaN hides the infs in the same gradient, so inf stays unknown there.
    """
    culprits = []
    for index, magnitude in zip(indices, magnitudes.tolist(), strict=True):
        if math.isnan(magnitude):
            culprits.append(Culprit(index, None, None))
        elif math.isinf(magnitude):
            culprits.append(Culprit(index, None, 0))
    return culprits


def from_counts(counts: torch.Tensor, indices: Sequence[int]) -> list[Culprit]:
    """Return the culprits among n gradients, from a kernel's counts of inf and NaN: int64 [n, 2], on the host."""
    return [
        Culprit(index, inf, nan)
        for index, (inf, nan) in zip(indices, counts.tolist(), strict=True)
        if inf or nan
    ]


def from_statistics(statistics: Statistics) -> list[Culprit]:
    """Return the culprits, from statistics that cover every element of each gradient."""
    columns = (statistics.parameters, statistics.inf, statistics.nan)
    return [
        Culprit(index, inf, nan)
        for index, inf, nan in zip(*(column.tolist() for column in columns), strict=True)
        if inf or nan
    ]
