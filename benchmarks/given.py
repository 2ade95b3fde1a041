"""Gradients of GPT-2 small, and iterations over given gradients: without training, their time is that of the scaler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.paired import Work


# A scale of 1 that never grows leaves the gradients unchanged.
SCALER: dict[str, Any] = {"device": "cpu", "init_scale": 1.0, "growth_interval": 2**31 - 1}


def shapes() -> list[tuple[int, ...]]:
    """The parameter shapes of GPT-2 small: 148 tensors, 124 million elements."""
    width = 768
    block: list[tuple[int, ...]] = [(width,), (width,)]
    for rows, columns in ((3 * width, width), (width, width)):
        block += [(rows, columns), (rows,)]
    block += [(width,), (width,)]
    for rows, columns in ((4 * width, width), (width, 4 * width)):
        block += [(rows, columns), (rows,)]
    return [(50257, width), (1024, width), *block * 12, (width,), (width,)]


def gradients() -> list[Tensor]:
    """fp32 gradients as fp16 autocast produces them: on fp16's grid, some zero or subnormal."""
    generator = torch.Generator().manual_seed(0)
    made = (torch.randn(shape, generator=generator) * 2**-11 for shape in shapes())
    return [gradient.half().float() for gradient in made]


class GivenGradients(nn.Module):
    """Parameters whose backward pass returns given gradients, at no cost of its own."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        super().__init__()
        self.gradients = gradients
        self.weights = nn.ParameterList(torch.zeros_like(gradient) for gradient in gradients)

    def backward(self) -> None:
        """Run a backward pass to the parameters: their hooks run, and nothing is accumulated."""
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
    """An optimizer whose step changes nothing."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        """Do nothing."""


def iteration(gradients: Sequence[Tensor], scaler: torch.amp.GradScaler) -> Work:
    """The scaler calls of one loop iteration. A stock scaler spends nearly all of its time in `unscale_`."""
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
