"""Chooses the elements of a tensor for a sample: runs of neighbours, drawn at random without replacement."""

from __future__ import annotations

import numpy as np
import torch

from ampmon.numerics.histogram import RUN


_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


_NEARLY = 1 / 32
"""A tensor with at most this share of runs more than wanted is looked at whole."""


def flatten(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements in one dimension, in memory order where that avoids a copy: statistics ignore the order."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if _is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a range of memory without gaps or overlaps (channels-last, transposed)."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def sample_runs(
    tensor: torch.Tensor, elements: int, generator: np.random.Generator
) -> torch.Tensor:
    """Return a copy of at least ``elements`` elements in runs of 16 neighbours, or all of them if there are no more.

    Runs are drawn at random without replacement. All runs are equally likely, and so are all pairs of runs. So the
    spread between drawn runs shows the error of their mean, however the gradient is structured. If the last run would
    be short, it begins earlier, so that all have the same length. Runs are in no order. A tensor with hardly more runs
    is returned whole: the overlap of its last two runs would be a larger error than the one that the spread shows.
    """
    flat = flatten(tensor)
    wanted = max(-(-elements // RUN), 1)
    whole, rest = divmod(flat.numel(), RUN)
    if whole + bool(rest) <= wanted * (1 + _NEARLY):
        return flat
    drawn = generator.choice(whole + bool(rest), wanted, replace=False, shuffle=False)
    # As integers, because numpy has no bfloat16. `take` is the cheapest way, and cheaper unordered than sorted.
    table = flat.view(_BITS[flat.dtype])[: whole * RUN].view(whole, RUN).numpy()
    runs = torch.from_numpy(table.take(drawn, axis=0, mode="clip")).view(flat.dtype)
    if rest:
        runs[torch.from_numpy(drawn == whole)] = flat[-RUN:]
    return runs.view(-1)
