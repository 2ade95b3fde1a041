"""Explains why torch refuses a step: no gradients or no scale. Does not read the error's text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch


_NEW_OPTIMIZER = (
    "model = model.to(device)  # also add wrappers and adapters first\n"
    "optimizer = {constructor}(model.parameters(), lr=...)"
)
_IN_TURN = (
    "scaler.scale(loss).backward()\nscaler.step(optimizer)  # only those that this loss trains\n"
    "scaler.update()\noptimizer.zero_grad()  # not before the step"
)
_NO_WAY = (
    "This loss does not depend on them, or `zero_grad()` runs between `backward()` and `step()`."
)


def has_no_scale(scaler: Any) -> bool:
    """Whether `scale()` was never called. Loading a state does not create the scale."""
    state = scaler.__dict__
    return "_scale" in state and state["_scale"] is None


def why_no_gradients(
    parameters: Sequence[torch.Tensor],
    held: Sequence[int],
    of_model: Collection[int],
    steps: int,
    constructor: str,
) -> tuple[str, str] | None:
    """Return the likely reason and the code to write instead, or None if some parameter has a gradient.

    ``held`` are ids of the optimizer's parameters when it was first seen, ``of_model`` those of the models now, if
    known. ``steps`` counts earlier steps. ``constructor`` is code for the optimizer's class.
    """
    if any(parameter.grad is not None for parameter in parameters):
        return None
    if not any(parameter.requires_grad for parameter in parameters):
        return (
            "All of them are frozen.",
            "parameter.requires_grad_(True)  # before the backward pass",
        )
    now, then = {id(parameter) for parameter in parameters}, set(held)
    if of_model and now.isdisjoint(of_model):
        return (
            "None of them is in the model: they were replaced after the optimizer was built. Wrappers, adapters and "
            "moves to another device can do that.",
            _NEW_OPTIMIZER.format(constructor=constructor),
        )
    if steps and now != then:
        change = f"{len(now - then)} parameters were added and {len(then - now)} removed"
        return f"The optimizer was changed since its first step: {change}. {_NO_WAY}", _IN_TURN
    before = f"They had gradients in the {steps} steps before. " if steps else ""
    return before + _NO_WAY, _IN_TURN
