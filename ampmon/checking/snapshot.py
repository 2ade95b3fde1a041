"""Restores a model, its gradients and all random generators bit for bit, and makes dropout draw the same each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


@contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Inside this context, no parameter has a gradient, and none of its post-accumulate-gradient hooks is called.

    On exit, restores parameters, buffers, gradients, attributes and hooks of all modules, and the states of torch's,
    NumPy's and Python's generators. Holds a copy of the model's tensors meanwhile. Their versions are restored too, so
    graphs that exist already can still be passed backward.
    """
    attributes = [_saved(vars(module)) for module in model.modules()]
    tensors = {
        id(each): each
        for saved in attributes
        for _, values in saved
        for each in values.values()
        if isinstance(each, torch.Tensor) and not each.is_inference()
    }
    copies = [(each, each._version, each.detach().clone()) for each in tensors.values()]
    hooks = [
        (found, dict(found))
        for each in tensors.values()
        if (found := getattr(each, "_post_accumulate_grad_hooks", None))
    ]
    numbers, python = np.random.get_state(), random.getstate()
    with (
        _versions_kept(tensors.values()),
        gradients_aside(tensors.values()),
        _forked(tensors.values()),
    ):
        for found, _ in hooks:
            found.clear()
        try:
            yield
        finally:
            for place, held in (*chain.from_iterable(attributes), *hooks):
                place.clear()
                place.update(held)
            with torch.no_grad():
                for tensor, version, copy in copies:
                    # Some cannot be written at all, such as an expanded buffer.
                    if tensor._version != version or not torch.equal(tensor, copy):
                        tensor.copy_(copy)
            np.random.set_state(numbers)
            random.setstate(python)


@contextmanager
def _versions_kept(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in tensors:
            stack.enter_context(torch.autograd.grad_mode._unsafe_preserve_version_counter(each))
        yield


@contextmanager
def gradients_aside(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Inside this context, these tensors have no gradient. On exit, they get back the one they had."""
    had = [(each, each.grad) for each in tensors if each.is_leaf and each.requires_grad]
    for tensor, _ in had:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in had:
            tensor.grad = gradient


def _saved(attributes: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """A module's attributes and each dictionary in them (parameters, buffers, hooks), with their current contents."""
    inner = [each for each in attributes.values() if isinstance(each, dict)]
    return [(each, dict(each)) for each in (attributes, *inner)]


def _forked(tensors: Iterable[torch.Tensor]) -> AbstractContextManager[None]:
    """A context that restores torch's generators on the host and on the accelerators of these tensors."""
    devices = {each.device for each in tensors if each.device.type not in ("cpu", "meta")}
    kind = next((each.type for each in devices), "cuda")
    return torch.random.fork_rng([each.index or 0 for each in devices], device_type=kind)


_DROPOUTS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
}
_ATTENTION = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}
"""The position of ``dropout_p`` among the arguments of each function."""


class SameDraws(TorchFunctionMode):
    """A mode in which dropout is computed in fp32, and attention has no dropout.

    On a GPU, the elements that dropout zeroes depend on the dtype even if the generator's state is the same: a kernel
    draws for as many elements at a time as it loads. Attention kernels differ more, so they run without dropout.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS and args and args[0].is_floating_point():
            # Not in place, even if requested: only the returned value counts.
            return func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
        if (place := _ATTENTION.get(func)) is not None:
            if place < len(args):
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)
