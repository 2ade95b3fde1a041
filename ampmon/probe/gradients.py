"""Which gradients an optimizer holds, as local plain tensors. Knows nothing of what is measured on them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch


MEASURED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def local_gradients(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each parameter that has a gradient, with its elements on this rank. No copy, no sync, no collective.

    A sparse gradient gives its values, uncoalesced: a row that occurs twice counts twice. What has no floating-point
    values to measure is left out: complex gradients, which torch refuses to unscale, and those of meta tensors.
    """
    for parameter, gradient in _held(optimizer):
        elements = local_elements(gradient)
        if elements.dtype in MEASURED and elements.numel() and not elements.is_meta:
            yield parameter, elements


def plain_gradients(
    optimizer: torch.optim.Optimizer, dtypes: Collection[torch.dtype]
) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Every gradient with its parameter, where all are plain strided tensors of these dtypes, else None.

    None too where two parameters share one gradient, which torch unscales twice.
    """
    gradients = []
    for parameter, gradient in _held(optimizer):
        plain = type(gradient) is torch.Tensor and gradient.layout is torch.strided
        if not plain or gradient.dtype not in dtypes:
            return None
        gradients.append((parameter, gradient))
    if len({id(gradient) for _, gradient in gradients}) < len(gradients):
        return None
    return gradients


def _held(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                yield parameter, gradient


def local_elements(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient's elements on this rank, as a plain dense tensor that shares their memory."""
    tensor: torch.Tensor = gradient.detach()
    if is_distributed(tensor):
        # to_local() is a view. Any reduction on the DTensor itself would be a hidden collective, and a rank that
        # samples alone would wait for the others for ever.
        distributed: Any = tensor
        tensor = distributed.to_local()
    if tensor.is_sparse:
        tensor = tensor._values()
    return tensor


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether this is a DTensor, told without importing torch.distributed.tensor for it."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def is_sharded(parameter: torch.Tensor) -> bool:
    """Whether each rank holds a part of it: FSDP's flat parameter, or a DTensor with a sharded placement."""
    if getattr(parameter, "_is_flat_param", False):
        return True
    placements: Any = getattr(parameter, "placements", ())
    return is_distributed(parameter) and any(placement.is_shard() for placement in placements)
