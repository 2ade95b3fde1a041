"""How often what-if's ranges hold the truth, and how wide they are.

The rule was chosen on twelve classifiers with two losses. The same ones with other seeds, and other models with other
losses, test it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, multi_margin_loss

from ampmon.numerics.formats import FP16
from ampmon_server.analysis.whatif import LEVELS, ranges
from campaigns.clinic.models import MODELS, mlp
from campaigns.clinic.training import digits
from campaigns.policy.gradients import histogram, pairs, trained
from campaigns.policy.tasks import Batch, Task


FACTORS = (1.0, 1e-3)
"""Of the loss: for gradients of usual size, and for small ones."""
LITTLE = 0.05
"""A smaller share of subnormal values is little underflow."""
SLACK = 1e-7
"""Rounding of shares."""

_Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def _batch(random: Generator) -> Batch:
    images, labels = digits()
    drawn = torch.randint(len(images), (64,), generator=random)
    return images[drawn], labels[drawn]


def _focal(found: Tensor, wanted: Tensor) -> Tensor:
    likelihood = found.log_softmax(-1).gather(1, wanted[:, None])
    return (-((1 - likelihood.exp()) ** 3) * likelihood).mean()


class _Residual(nn.Module):
    def __init__(self, blocks: int, norm: bool) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(64) if norm else nn.Identity(),
                nn.Linear(64, 64),
                nn.GELU(),
                nn.Linear(64, 64),
            )
            for _ in range(blocks)
        )
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        found: Tensor = self.last(x)
        return found


def _deep(layers: int, activation: type[nn.Module], width: int = 64) -> nn.Module:
    made: list[nn.Module] = [nn.Linear(64, width), activation()]
    for _ in range(layers):
        made += [nn.Linear(width, width), activation()]
    return nn.Sequential(*made, nn.Linear(width, 10))


def _convolutions() -> nn.Module:
    made: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
    for inputs in (1, *[16] * 5):
        made += [nn.Conv2d(inputs, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*made, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


OTHERS: Mapping[str, Callable[[], nn.Module]] = {
    "residual with layernorm": partial(_Residual, 6, norm=True),
    "residual": partial(_Residual, 4, norm=False),
    "deep relu": partial(_deep, 6, nn.ReLU),
    "deep tanh": partial(_deep, 8, nn.Tanh),
    "deep silu": partial(_deep, 4, nn.SiLU),
    "wide": partial(_deep, 1, nn.ReLU, 256),
}


def _times(factor: float, loss: _Loss, found: Tensor, wanted: Tensor) -> Tensor:
    return loss(found, wanted) * factor


def _tasks(models: Iterable[Callable[[], nn.Module]], losses: Iterable[_Loss]) -> list[Task]:
    return [
        Task(
            make,
            _batch,
            partial(_times, factor, loss),
            lambda model: torch.optim.Adam(model.parameters(), 2e-3),
        )
        for make in models
        for loss in losses
        for factor in FACTORS
    ]


def holds(
    low: int, here: Tensor, high: int, there: Tensor
) -> tuple[bool, bool, bool, float, float]:
    """Whether ``here`` has little underflow, its ranges of underflow and subnormal values are right, and their widths.

    Each is estimated from ``here`` at 2^``low`` for 2^``high``.
    """
    zero, small = _shares(here)
    zero_there, small_there = _shares(there)
    found = ranges(histogram(here) / here.numel(), zero, high - low)
    flushed, subnormal = found["underflow"], found["subnormal"]
    return (
        small < LITTLE and min(low, high) >= 0,
        _within(flushed, max(zero_there - zero, 0.0)),
        _within(subnormal, small_there),
        flushed[1] - flushed[0],
        subnormal[1] - subnormal[0],
    )


def _within(ends: tuple[float, float], share: float) -> bool:
    return ends[0] - SLACK <= share <= ends[1] + SLACK


def _shares(gradient: Tensor) -> tuple[float, float]:
    small = (gradient != 0) & (gradient.abs() < FP16.min_normal)
    return float((gradient == 0).float().mean()), float(small.float().mean())


def measured(name: str, tasks: Sequence[tuple[int, Task]]) -> None:
    """Print how many ranges hold the truth and their mean widths, over these tasks with their seeds."""
    found = [
        (high < low, *holds(low, here, high, there))
        for seed, task in tasks
        for updates in (0, 150)
        for low, here, high, there in pairs(trained(task, updates, seed), LEVELS[::2])
        if here.any() and there.any()
    ]
    print(name)
    for down in (True, False):
        for little in (True, False):
            some = np.array([each for each in found if each[:2] == (down, little)])
            print(
                "smaller" if down else "larger",
                "little" if little else "more",
                len(some),
                some.mean(0)[2:],
            )


def main() -> None:
    torch.set_num_threads(1)
    # The gradient of a sparse embedding is no dense tensor.
    models = [make for name, make in MODELS.items() if "sparse" not in name]
    models.append(lambda: mlp(activation=nn.Sigmoid))
    chosen = _tasks(models, (cross_entropy, _focal))
    others = partial(cross_entropy, label_smoothing=0.1), partial(multi_margin_loss, p=2)
    measured("as chosen", [(0, task) for task in chosen])
    measured("other seeds", [(3 + at % 3, task) for at, task in enumerate(chosen) if at % 2])
    measured("other models", [(5, task) for task in _tasks(OTHERS.values(), others)])
    measured("convolutions", [(5, task) for task in _tasks([_convolutions], others)])


if __name__ == "__main__":
    main()
