"""Lists the gradients that an optimizer holds, as plain tensors local to this rank, and draws samples of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch

from ampmon.numerics.sampling_error import RUN


MEASURED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
PLAIN = torch.Tensor.__torch_dispatch__
"""The dispatch of tensors that hold their own values. Wrapper classes override it and define what values mean."""


def local_gradients(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each parameter that has a gradient, with its elements on this rank. No copy, sync or collective.

    A sparse gradient gives its uncoalesced values, so a row that occurs twice counts twice. Gradients without
    floating-point values to measure are left out: complex ones, which torch refuses to unscale, meta tensors, and those
    of a wrapper class.
    """
    with torch.no_grad():
        return [
            (parameter, elements)
            for parameter, gradient in _held(optimizer)
            if is_measurable(elements := _local(gradient))
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


def is_measurable(elements: torch.Tensor) -> bool:
    """Return whether these are values to measure, at least one."""
    known = elements.dtype in MEASURED and not elements.is_meta and elements.numel() > 0
    return known and type(elements).__torch_dispatch__ is PLAIN


def is_distributed(tensor: torch.Tensor) -> bool:
    """Return whether this is a DTensor, without importing torch.distributed.tensor."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def is_hookable(parameter: torch.Tensor) -> bool:
    """Return whether passes bring it a gradient of its own shape. FSDP shards its parameters' gradients on the way."""
    sharded = getattr(parameter, "_is_flat_param", False) or is_distributed(parameter)
    return parameter.requires_grad and parameter.is_leaf and not sharded


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
    return tensor.as_strided((tensor.numel(),), (1,)) if has_no_gaps(tensor) else tensor.reshape(-1)


def has_no_gaps(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill their memory, each place once, as in channels-last layout."""
    if tensor.is_contiguous():
        return True
    filled = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != filled:
            return False
        filled *= size
    return True


def widened(elements: torch.Tensor) -> torch.Tensor:
    """Widen half precision, exactly, so that values have fp32's or fp64's exponent field."""
    return elements if elements.dtype in (torch.float32, torch.float64) else elements.float()


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
    # A draw of `whole` stands for the short last run, which the table lacks: it is replaced below.
    runs = torch.from_numpy(table.take(drawn, axis=0, mode="clip")).view(flat.dtype)
    if rest:
        runs[torch.from_numpy(drawn == whole)] = flat[-RUN:]
    return runs.view(-1)
