"""Which elements of a tensor a sample looks at: runs of neighbours, drawn at random without replacement."""

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


def sample_runs(
    tensor: torch.Tensor, elements: int, generator: np.random.Generator
) -> torch.Tensor:
    """A copy of at least ``elements`` elements in runs of 16 neighbours, or all of them if there are no more.

    Runs are drawn at random without replacement, any as likely as any other and any two as likely as any other two:
    what differs between those drawn then shows how far their mean may be off, however the gradient is structured. Where
    the last run would be short it begins earlier, so that all have the same length. Runs are in no order.
    """
    flat = flatten(tensor)
    wanted = max(-(-elements // RUN), 1)
    whole, rest = divmod(flat.numel(), RUN)
    if whole + bool(rest) <= wanted:
        return flat
    drawn = generator.choice(whole + bool(rest), wanted, replace=False, shuffle=False)
    # As integers, for numpy has no bfloat16; its take is the cheapest way, and in no order cheaper than sorted.
    table = flat.view(_BITS[flat.dtype])[: whole * RUN].view(whole, RUN).numpy()
    runs = torch.from_numpy(table.take(drawn, axis=0, mode="clip")).view(flat.dtype)
    if rest:
        runs[torch.from_numpy(drawn == whole)] = flat[-RUN:]
    return runs.view(-1)
