"""How often what-if's ranges hold the truth, for models other than those that its errors were measured on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from ampmon.numerics.formats import FP16
from ampmon_server.analysis.whatif import LEVELS, Gradient, curve
from campaigns.policy.gradients import histogram
from campaigns.policy.shifted import trained
from campaigns.policy.tasks import Batch, Task


WIDTH, CLASSES, TOKENS = 32, 10, 200
WEIGHTS = (1.0, 1e-3)
"""Factors on the loss: gradients of usual size, and small ones."""
LITTLE = 0.05
"""A smaller share of subnormal values is little underflow."""
SLACK = 1e-7
"""Rounding of shares."""

Row: TypeAlias = tuple[bool, bool, bool]
"""Whether there is little underflow, and whether the ranges of underflow and of subnormal values hold the truth."""


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(8, WIDTH, batch_first=True), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.cells(inputs)[0][:, -1])
        return outputs


def _layers(*inner: Callable[[], nn.Module], deep: int = 1, out: int = CLASSES) -> nn.Module:
    hidden = [
        layer
        for _ in range(deep)
        for layer in (nn.Linear(WIDTH, WIDTH), *(each() for each in inner))
    ]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, out))


def _language() -> nn.Module:
    block = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(TOKENS, WIDTH), block, nn.Linear(WIDTH, TOKENS), nn.Flatten(0, 1)
    )


def _autoencoder() -> nn.Module:
    halves = nn.Conv2d(1, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU()
    doubles = nn.ConvTranspose2d(16, 8, 2, 2), nn.SiLU(), nn.ConvTranspose2d(8, 1, 2, 2)
    return nn.Sequential(*halves, *doubles)


def _classes(random: Generator) -> Batch:
    inputs = torch.randn(64, WIDTH, generator=random)
    return inputs, inputs[:, :CLASSES].argmax(1)


def _focal(found: Tensor, wanted: Tensor) -> Tensor:
    likelihood = found.log_softmax(-1).gather(1, wanted[:, None])
    return (-((1 - likelihood.exp()) ** 3) * likelihood).mean()


def _sequences(random: Generator) -> Batch:
    inputs = torch.randn(WIDTH, 20, 8, generator=random)
    return inputs, inputs.sum((1, 2)).long() % CLASSES


def _tokens(random: Generator) -> Batch:
    inputs = torch.randint(TOKENS, (8, 32), generator=random)
    return inputs, (inputs.flatten() * 7 + 1) % TOKENS


def _images(random: Generator) -> Batch:
    inputs = torch.rand(8, 1, 16, 16, generator=random)
    return inputs, inputs


def _values(random: Generator) -> Batch:
    inputs = torch.randn(64, WIDTH, generator=random)
    return inputs, inputs[:, :1].sin()


_ENTROPY = functional.cross_entropy
MODELS: Mapping[
    str, tuple[Callable[[], nn.Module], Callable[[Generator], Batch], Callable[..., Tensor]]
] = {
    "gelu": (lambda: _layers(nn.GELU, deep=2), _classes, _ENTROPY),
    "deep": (lambda: _layers(nn.ReLU, deep=6), _classes, _ENTROPY),
    "batch norm": (lambda: _layers(lambda: nn.BatchNorm1d(WIDTH), nn.ReLU), _classes, _ENTROPY),
    "layer norm": (
        lambda: _layers(lambda: nn.LayerNorm(WIDTH), nn.GELU, deep=4),
        _classes,
        _ENTROPY,
    ),
    "sigmoid": (lambda: _layers(nn.Sigmoid, deep=2), _classes, _ENTROPY),
    "focal": (lambda: _layers(nn.ReLU), _classes, _focal),
    "regression": (lambda: _layers(nn.SiLU, out=1), _values, functional.smooth_l1_loss),
    "recurrent": (Recurrent, _sequences, _ENTROPY),
    "language": (_language, _tokens, _ENTROPY),
    "autoencoder": (_autoencoder, _images, functional.mse_loss),
}


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 2e-3)


def rows(gradient: Callable[[float], Tensor | None]) -> Iterator[tuple[int, Row]]:
    """For each two scales, the bits between them, and whether the ranges hold what the gradient is at the second."""
    found = {level: gradient(2.0**level) for level in LEVELS[::2]}
    finite = {
        level: each
        for level, each in found.items()
        if each is not None and bool(torch.isfinite(each).all()) and bool(each.any())
    }
    for (low, here), (high, there) in permutations(finite.items(), 2):
        if len(here) != len(there):
            continue
        zero, small = _shares(here)
        shares = histogram(here) / here.numel()
        ranges = curve(Gradient(low, shares, zero, float(here.abs().max())), None, FP16)
        place = LEVELS.index(high)
        zeros, subnormal = _shares(there)
        flushed = max(zeros - zero, 0.0)
        holds = (
            ranges.underflow_low[place] - SLACK <= flushed <= ranges.underflow_high[place] + SLACK,
            ranges.subnormal_low[place] - SLACK
            <= subnormal
            <= ranges.subnormal_high[place] + SLACK,
        )
        yield high - low, (small < LITTLE and min(low, high) >= 0, *holds)


def _shares(gradient: Tensor) -> tuple[float, float]:
    small = (gradient != 0) & (gradient.abs() < FP16.min_normal)
    return float((gradient == 0).float().mean()), float(small.float().mean())


def main() -> None:
    torch.set_num_threads(1)
    found = [
        row
        for make, batch, loss in MODELS.values()
        for weight in WEIGHTS
        for updates in (0, 150)
        for row in rows(
            trained(
                Task(make, batch, lambda f, w, of=loss, by=weight: of(f, w) * by, _adam), updates
            )
        )
    ]
    for little in (True, False):
        for down in (True, False):
            some = np.array([row for bits, row in found if row[0] == little and (bits < 0) == down])
            print(
                "little" if little else "more",
                "smaller" if down else "larger",
                len(some),
                some.mean(0)[1:],
            )


if __name__ == "__main__":
    main()
