"""How often what-if's ranges hold the truth, and how wide they are, for twelve classifiers with two losses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from ampmon.numerics.formats import FP16
from ampmon_server.analysis.whatif import LEVELS, Gradient, curve
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


def _batch(random: Generator) -> Batch:
    images, labels = digits()
    drawn = torch.randint(len(images), (64,), generator=random)
    return images[drawn], labels[drawn]


def _focal(found: Tensor, wanted: Tensor) -> Tensor:
    likelihood = found.log_softmax(-1).gather(1, wanted[:, None])
    return (-((1 - likelihood.exp()) ** 3) * likelihood).mean()


def _tasks() -> list[Task]:
    return [
        Task(
            make,
            _batch,
            lambda found, wanted, loss=loss, factor=factor: loss(found, wanted) * factor,
            lambda model: torch.optim.Adam(model.parameters(), 2e-3),
        )
        for name, make in {**MODELS, "sigmoid": lambda: mlp(activation=nn.Sigmoid)}.items()
        if "sparse" not in name  # its gradient is no dense tensor
        for loss in (cross_entropy, _focal)
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
    shares = histogram(here) / here.numel()
    ranges = curve(Gradient(low, shares, zero, float(here.abs().max())), None, FP16)
    at = LEVELS.index(high)
    flushed = ranges.underflow_low[at], ranges.underflow_high[at]
    subnormal = ranges.subnormal_low[at], ranges.subnormal_high[at]
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


def main() -> None:
    torch.set_num_threads(1)
    found = [
        (high < low, *holds(low, here, high, there))
        for task in _tasks()
        for updates in (0, 150)
        for low, here, high, there in pairs(trained(task, updates), LEVELS[::2])
        if here.any() and there.any()
    ]
    for down in (True, False):
        for little in (True, False):
            some = np.array([each for each in found if each[:2] == (down, little)])
            print(
                "smaller" if down else "larger",
                "little" if little else "more",
                len(some),
                some.mean(0)[2:],
            )


if __name__ == "__main__":
    main()
