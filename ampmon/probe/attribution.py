"""Which gradients are not finite, found before clipping spreads one inf to all of them. Knows nothing of names."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ampmon.numerics.histogram import Statistics
from ampmon.wire import Culprit


def count(gradients: Sequence[torch.Tensor], indices: Sequence[int]) -> list[Culprit]:
    """The gradients with inf or NaN elements, and how many of each. Reads every element: on a CPU, on a skip."""
    culprits = []
    for index, gradient in zip(indices, gradients, strict=True):
        if torch.isfinite(gradient).all():
            continue
        nan = int(torch.isnan(gradient).sum())
        inf = int(torch.isinf(gradient).sum())
        culprits.append(Culprit(index, inf, nan))
    return culprits


def flag(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The largest magnitude of each of n gradients of one device, float32 [n], NaN where one is: only enqueues work."""
    return torch.stack(torch._foreach_norm(list(gradients), math.inf)).float()


def from_flags(magnitudes: torch.Tensor, indices: Sequence[int]) -> list[Culprit]:
    """The culprits that `flag`'s copy on the host shows: which, and of which kind, but not how many elements.

    A NaN hides the infs beside it, so inf stays unknown there.
    """
    culprits = []
    for index, magnitude in zip(indices, magnitudes.tolist(), strict=True):
        if math.isnan(magnitude):
            culprits.append(Culprit(index, None, None))
        elif math.isinf(magnitude):
            culprits.append(Culprit(index, None, 0))
    return culprits


def from_counts(counts: torch.Tensor, indices: Sequence[int]) -> list[Culprit]:
    """The culprits among n gradients, from a kernel's counts of inf and of NaN: int64 [n, 2], on the host."""
    return [
        Culprit(index, inf, nan)
        for index, (inf, nan) in zip(indices, counts.tolist(), strict=True)
        if inf or nan
    ]


def from_statistics(statistics: Statistics) -> list[Culprit]:
    """The culprits among gradients every element of which was looked at."""
    columns = (statistics.parameters, statistics.inf, statistics.nan)
    return [
        Culprit(index, inf, nan)
        for index, inf, nan in zip(*(column.tolist() for column in columns), strict=True)
        if inf or nan
    ]
