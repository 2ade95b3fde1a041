"""Lists the gradients that an optimizer holds, as plain tensors local to this rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch


MEASURED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def local_gradients(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each parameter that has a gradient, with its elements on this rank. No copy, sync or collective.

    A sparse gradient gives its uncoalesced values, so a row that occurs twice counts twice. Gradients without
    floating-point values to measure are left out: complex ones, which torch refuses to unscale, and meta tensors.
    """
    with torch.no_grad():
        return [
            (parameter, elements)
            for parameter, gradient in _held(optimizer)
            if (elements := _local(gradient)).dtype in MEASURED
            and elements.numel()
            and not elements.is_meta
        ]


def plain_gradients(
    optimizer: torch.optim.Optimizer, dtypes: Collection[torch.dtype]
) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Return every gradient with its parameter if all are plain strided tensors of these dtypes, else None.

    Also None if two parameters share one gradient, which torch unscales twice.
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


def addresses(optimizer: torch.optim.Optimizer) -> list[tuple[int, int]]:
    """Return the id of each parameter with a gradient, and the gradient's address. Gradients must be plain tensors."""
    return [
        (id(parameter), gradient.data_ptr())
        for group in optimizer.param_groups
        for parameter in group["params"]
        if (gradient := parameter.grad) is not None
    ]


def _held(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                yield parameter, gradient


def local_elements(gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient's elements on this rank, as a plain dense tensor that shares their memory."""
    with torch.no_grad():
        return _local(gradient)


def _local(tensor: Any) -> torch.Tensor:
    """`local_elements` under `torch.no_grad`, where `to_local` returns the tensor it holds without a dispatch."""
    if type(tensor) is not torch.Tensor and is_distributed(tensor):
        # Any operator on the DTensor itself takes 0.1 ms, and a reduction is a hidden collective: a rank that samples
        # alone would wait for the others indefinitely.
        tensor = tensor.to_local()
    if type(tensor) is not torch.Tensor or tensor.requires_grad:
        tensor = tensor.detach()
    elements: torch.Tensor = tensor._values() if tensor.layout is torch.sparse_coo else tensor
    return elements


def is_distributed(tensor: torch.Tensor) -> bool:
    """Return whether this is a DTensor, without importing torch.distributed.tensor."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def replicas(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters of whose gradients another rank holds the same elements, as under hybrid sharding.

    A sum over ranks must leave them out. Only DTensors tell.
    """
    return [parameter for parameter, gradient in _held(optimizer) if _is_replica(gradient)]


def _is_replica(gradient: Any) -> bool:
    if not is_distributed(gradient):
        return False
    places = gradient.device_mesh.get_coordinate() or ()
    return any(
        place > 0 and placement.is_replicate()
        for place, placement in zip(places, gradient.placements, strict=False)
    )


def is_sharded(parameter: torch.Tensor) -> bool:
    """Return whether each rank holds a part of it: FSDP's flat parameter, or a DTensor with a sharded placement."""
    if getattr(parameter, "_is_flat_param", False):
        return True
    placements: Any = getattr(parameter, "placements", ())
    return is_distributed(parameter) and any(placement.is_shard() for placement in placements)
