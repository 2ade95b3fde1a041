"""Iterations over gradients that are given, with nothing trained: what time they take is the scaler's or a hook's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.paired import Work


# At a scale of 1 that never grows the gradients stay as they are.
SCALER: dict[str, Any] = {"device": "cpu", "init_scale": 1.0, "growth_interval": 2**31 - 1}


class GivenGradients(nn.Module):
    """Parameters whose backward pass gives them the gradients at hand, at no cost of its own."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        super().__init__()
        self.gradients = gradients
        self.weights = nn.ParameterList(torch.zeros_like(gradient) for gradient in gradients)

    def backward(self) -> None:
        """One backward pass to the parameters: their hooks run, and nothing is accumulated."""
        parameters = list(self.weights)
        loss = _Give.apply(self.gradients, *parameters)  # type: ignore[no-untyped-call]
        torch.autograd.grad(loss, parameters)


class _Give(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *_: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return None, *ctx.gradients


class Still(torch.optim.Optimizer):
    """An optimizer whose step leaves everything as it is."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        """Nothing."""


def iteration(gradients: Sequence[Tensor], scaler: torch.amp.GradScaler) -> Work:
    """What a loop asks of its scaler in one iteration. Nearly all of a stock scaler's time in it is `unscale_`'s."""
    parameters = [nn.Parameter(torch.empty_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer = Still(parameters)

    def iterate() -> None:
        scaler.scale(torch.zeros(()))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    return iterate
