"""Which elements of a tensor a sample looks at: runs of neighbours, evenly spaced from a random start."""

from __future__ import annotations

import math
import random

import torch

from ampmon.histogram import RUN


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """All elements as one dimension, in memory order where that needs no copy: statistics do not depend on order."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if _is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their stretch of memory without gaps or overlaps (channels-last, transposed)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def sample_runs(tensor: torch.Tensor, elements: int, generator: random.Random) -> torch.Tensor:
    """A copy of about ``elements`` elements in runs of 16 neighbours, or all of them if there are no more.

    Every run is as likely to be seen as any other: the runs are spaced evenly from a random start, around the end. The
    spacing shares no factor with the row length, or column-structured gradients would show the same columns each time.
    """
    flat = flatten(tensor)
    wanted = max(elements // RUN, 1)
    runs = flat.numel() // RUN
    if runs <= wanted:
        return flat
    spacing = _spacing(runs // wanted, row=max(tensor.shape[-1] if tensor.dim() else 1, 1))
    start = generator.randrange(runs)
    table = flat[: runs * RUN].view(runs, RUN)
    before_wrap = min(wanted, -(-(runs - start) // spacing))
    head = table[start : start + before_wrap * spacing : spacing]
    if before_wrap == wanted:
        return head.reshape(-1)
    wrapped = (start + before_wrap * spacing) % runs
    tail = table[wrapped : wrapped + (wanted - before_wrap) * spacing : spacing]
    return torch.cat((head, tail)).view(-1)


def _spacing(largest: int, row: int) -> int:
    """The largest spacing of runs, at most ``largest``, that shares no factor with the row length in runs."""
    period = row // RUN if row % RUN == 0 else row
    for spacing in range(largest, 1, -1):
        if math.gcd(spacing, period) == 1:
            return spacing
    return 1
