"""Trains the demo's model in fp16 and keeps its scales and gradients, for the drawn pictures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from ampmon.numerics.histogram import Statistics
from ampmon.probe.host import measure
from ampmon_server.demo import text
from ampmon_server.demo.model import GPT, SMALL
from ampmon_server.demo.text import ALPHABET
from ampmon_server.demo.train import LEARNING_RATE


FAR = 4
"""The factor between the first scale that overflows and the one shown as too large."""


@dataclass(frozen=True, slots=True)
class Update:
    """``largest`` is the largest magnitude of the scaled gradient; ``after`` the scale that `update()` set."""

    step: int
    loss: float
    scale: float
    largest: float
    after: float

    @property
    def skipped(self) -> bool:
        return not math.isfinite(self.largest)


@dataclass(frozen=True, slots=True)
class Measured:
    """A training, and the gradient of one batch at three scales: too small, enough, too large."""

    growth_interval: int
    updates: list[Update]
    gradients: dict[float, Statistics]

    @property
    def tooth(self) -> tuple[Update, Update]:
        """The first skip after a growth: the update that grew the scale, and the skipped one."""
        grown = None
        for update in self.updates:
            if update.skipped and grown:
                return grown, update
            grown = update if update.after > update.scale else grown
        raise ValueError(f"no growth and then a skip within {len(self.updates)} updates")


def train(updates: int = 320, first_scale: float = 2.0**12, growth_interval: int = 25) -> Measured:
    """Train on the CPU. Blocks for minutes. The updates are torch's own, the histograms those of ampmon's probe."""
    torch.manual_seed(0)
    data = text.load("cpu")
    model = GPT(len(ALPHABET), SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    scaler = torch.amp.GradScaler("cpu", init_scale=first_scale, growth_interval=growth_interval)
    done = []
    for step in range(updates):
        scale = scaler.get_scale()
        loss = _backward(model, data.batch(SMALL.batch, SMALL.context), scaler.scale)
        largest = max(float(each.abs().max()) for each in _gradients(model))
        scaler.step(optimizer)
        scaler.update()
        done.append(Update(step, float(loss), scale, largest, scaler.get_scale()))
    batch = data.batch(SMALL.batch, SMALL.context)
    return Measured(growth_interval, done, dict(_at_three_scales(model, batch)))


def _backward(
    model: GPT, batch: tuple[Tensor, Tensor], scaled: Callable[[Tensor], Tensor]
) -> Tensor:
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss: Tensor = model(*batch)
    scaled(loss).backward()
    return loss.detach()


def _gradients(model: GPT) -> list[Tensor]:
    return [each.grad for each in model.parameters() if each.grad is not None]


def _at_three_scales(
    model: GPT, batch: tuple[Tensor, Tensor]
) -> Iterator[tuple[float, Statistics]]:
    """The gradient of the parameters on fp16's grid, at three scales."""

    def at(scale: float) -> Statistics:
        _backward(model, batch, lambda loss: loss * scale)
        found = _gradients(model)
        return measure(found, range(len(found)), "all", np.random.default_rng(0))

    scales = (2.0**exponent for exponent in count())
    beyond = next(scale for scale in scales if (at(scale).inf + at(scale).nan).any())
    middle = 2.0 ** (math.frexp(beyond)[1] // 2)
    fits = at(middle)
    for scale in (1.0, middle, FAR * beyond):
        yield scale, at(scale).select(fits.grid_mask)
