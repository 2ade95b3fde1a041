"""Reads the parameters, state and class of optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def state_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Mapping[str, Any]:
    """Return the optimizer's state for a parameter. Some have no ``state`` at all, as fastai's callback."""
    state = getattr(optimizer, "state", None)
    return state.get(parameter, {}) if isinstance(state, Mapping) else {}


def constructor_of(optimizer: torch.optim.Optimizer) -> str:
    """Its class as a script writes it, such as ``torch.optim.SGD``."""
    kind = type(optimizer)
    torchs = kind.__module__.startswith("torch.optim.")
    return f"{'torch.optim.' if torchs else ''}{kind.__name__}"


def begins_with_leftovers(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its next step creates momentum buffers from uninitialised memory: fused SGD's first step does."""
    if not isinstance(optimizer, torch.optim.SGD):
        return False
    groups = [group for group in optimizer.param_groups if group["fused"] and group["momentum"]]
    states = (state_of(optimizer, each) for group in groups for each in group["params"])
    return bool(groups) and not any(state.get("momentum_buffer") is not None for state in states)
