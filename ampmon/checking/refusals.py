"""Rejects models and losses that a preflight cannot check, and says what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ampmon.errors import ConfigurationError


_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def checked_model(model: Any) -> str:
    """Return the type of the device that a model is on. Raises ConfigurationError if the model cannot be checked."""
    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(f"model: a torch.nn.Module is needed, not {type(model).__name__}")
    for fault in _faults(model):
        raise ConfigurationError(f"model: {fault}")
    return next(each.device.type for each in model.parameters() if each.requires_grad)


def _faults(model: torch.nn.Module) -> Iterator[str]:
    for name, module in model.named_modules():
        if found := _WRAPPERS & {each.__name__ for each in type(module).__mro__}:
            yield f"{name or 'it'} is wrapped in {found.pop()}; pass the unwrapped model, on one rank"
        compiled = getattr(module, "_compiled_call_impl", None) or hasattr(module, "_orig_mod")
        if compiled or isinstance(module, torch.jit.ScriptModule):
            yield f"{name or 'it'} is compiled, which hides its modules; pass the uncompiled model"
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    for name, each in trained.items():
        if torch.nn.parameter.is_lazy(each):
            yield f"{name} is not initialized; run the model once first"
        elif each.dtype != torch.float32:
            yield f"{name} is {each.dtype}, and autocast needs fp32 weights; call model.float() first"
    yield from _faults_of_device({each.device.type for each in trained.values()})


def _faults_of_device(kinds: set[str]) -> Iterator[str]:
    if not kinds:
        yield "no parameter requires a gradient, so there is none to check"
    elif len(kinds) > 1 or "meta" in kinds or not torch.amp.is_autocast_available(min(kinds)):
        yield (
            f"its weights are on {', '.join(sorted(kinds))}; put them all on one kind of device that supports autocast"
        )


def checked_loss(loss: Any) -> torch.Tensor:
    """Return the loss. Raises ConfigurationError if no backward pass can begin from it."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = (
            f"shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        )
        raise ConfigurationError(
            f"loss_fn: it must return a tensor with one element, not {found}; for example, return loss.mean()"
        )
    if not loss.requires_grad:
        raise ConfigurationError(
            "loss_fn: the loss depends on no parameter that requires a gradient; "
            "look for detach(), item() or torch.no_grad()"
        )
    return loss
