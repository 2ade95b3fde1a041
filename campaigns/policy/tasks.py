"""Small real fp16 trainings, each with its own ceiling: the scale from which its gradients overflow.

Weights and data come from fixed seeds, and an update's data from its number alone. So two trainings of a task differ
only in what their scalers do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor, nn


Batch: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A model, its batches, loss and optimizer. ``weight`` multiplies the loss of an update."""

    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    weight: Callable[[int], float] = lambda update: 1.0


def train(
    task: Task,
    scaler: torch.amp.GradScaler,
    updates: int,
    move: Callable[[bool], float] | None = None,
) -> list[tuple[float, bool]]:
    """Train, and return the scale in force at each update and whether it was skipped.

    ``move`` gets whether the update was skipped and returns the next scale; without it the scaler sets its own.
    """
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model)
    rows = []
    for update in range(updates):
        inputs, wanted = task.batch(torch.Generator().manual_seed(1000 + update))
        with torch.autocast("cpu", dtype=torch.float16):
            found = model(inputs)
        loss = task.loss(found.float(), wanted) * task.weight(update)
        scaler.scale(loss).backward()
        scale = float(scaler.get_scale())
        scaler.unscale_(optimizer)
        states = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        skipped = any(bool(each.item()) for each in states.values())
        scaler.step(optimizer)
        scaler.update(None if move is None else float(move(skipped)))
        optimizer.zero_grad()
        rows.append((scale, skipped))
    return rows


def _cross_entropy(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda found, wanted: nn.functional.cross_entropy(found, wanted) * factor


def _squares(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda found, wanted: nn.functional.mse_loss(found, wanted) * factor


def _labels(rows: int, inputs: int, classes: int, tail: float = 0.0) -> Callable[..., Batch]:
    """Classes that a fixed matrix separates. The share ``tail`` of the batches has inputs 4 to 64 times as large."""
    teacher = torch.randn(inputs, classes, generator=torch.Generator().manual_seed(7))

    def batch(seed: torch.Generator) -> Batch:
        x = torch.randn(rows, inputs, generator=seed)
        y = (x @ teacher).argmax(1)
        if tail and torch.rand((), generator=seed) < tail:
            x = x * 2.0 ** float(torch.randint(2, 7, (), generator=seed))
        return x, y

    return batch


def _letters(seed: torch.Generator) -> Batch:
    """Sequences that count up from any start, in steps of one to three. The target is the next number."""
    start = torch.randint(0, 32, (16, 1), generator=seed)
    stride = torch.randint(1, 4, (16, 1), generator=seed)
    tokens = (start + stride * torch.arange(17)) % 32
    return tokens[:, :-1], tokens[:, 1:]


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 32)
        self.places = nn.Embedding(16, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.norm, self.last = nn.LayerNorm(32), nn.LayerNorm(32)
        self.feed = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 32)
        self.register_buffer("mask", torch.triu(torch.full((16, 16), float("-inf")), 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.places.weight
        y = self.norm(x)
        x = x + self.attention(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        return self.head(x + self.feed(self.last(x)))


class _Recurrent(nn.Module):
    """A custom cell stepped through time: its gradients grow and shrink on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.take, self.keep = nn.Linear(4, 48), nn.Linear(48, 48)
        self.tell = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 48)
        for at in range(x.shape[1]):
            state = torch.tanh(self.take(x[:, at]) + self.keep(state))
        return self.tell(state)


def _sums(seed: torch.Generator) -> Batch:
    x = torch.randn(32, 12, 4, generator=seed)
    return x, x.cumsum(1)[:, -1] / 3


def _images(seed: torch.Generator) -> Batch:
    label = torch.randint(0, 4, (16,), generator=seed)
    x = torch.randn(16, 1, 8, 8, generator=seed) * 0.5
    for row, which in enumerate(label.tolist()):
        x[row, 0, 2 * which : 2 * which + 2] += 1
    return x, label


def _noisy(seed: torch.Generator) -> Batch:
    x = torch.randn(64, 20, generator=seed)
    noise = torch.randn(64, 1, generator=seed) / torch.randn(64, 1, generator=seed).abs().clamp(
        min=0.02
    )
    return x, x[:, :1] * 2 + 0.1 * noise


def _mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), activation()]
        return nn.Sequential(*layers[:-1])

    return build


def _convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 4),
    )


def _sgd(lr: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def _adam(lr: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr)


TASKS: Mapping[str, Task] = {
    "tanh": Task(
        _mlp(64, 128, 128, 10, activation=nn.Tanh),
        _labels(64, 64, 10),
        _cross_entropy(64.0),
        _sgd(1e-4),
    ),
    "relu": Task(_mlp(32, 64, 64, 64, 8), _labels(64, 32, 8), _cross_entropy(64.0), _adam(1e-3)),
    "outliers": Task(
        _mlp(32, 64, 8), _labels(64, 32, 8, tail=0.02), _cross_entropy(16.0), _sgd(1e-3)
    ),
    "noise": Task(_mlp(20, 64, 1), _noisy, _squares(4.0), _sgd(1e-4)),
    "recurrent": Task(_Recurrent, _sums, _squares(64.0), _adam(2e-3)),
    "transformer": Task(
        _Transformer,
        _letters,
        lambda found, wanted: nn.functional.cross_entropy(
            found.flatten(0, 1), wanted.flatten(), reduction="sum"
        ),
        _adam(1e-3),
    ),
    "convolution": Task(_convolution, _images, _cross_entropy(32.0), _sgd(1e-4)),
}


def _every(period: int, times: float, batches: int = 1) -> Callable[[int], float]:
    """The weight of an update: ``times`` for the last ``batches`` of each period, else 1."""
    return lambda update: times if update % period >= period - batches else 1.0


def _drawn(update: int) -> float:
    return float(torch.rand((), generator=torch.Generator().manual_seed(update)))


OUTLIERS: Mapping[str, Task] = {
    "every 90th x 4096": Task(
        _mlp(32, 64, 8, activation=nn.Tanh),
        _labels(64, 32, 8),
        _cross_entropy(1.0),
        _adam(1e-3),
        _every(90, 4096.0),
    ),
    "1 in 25 x 1000": Task(
        _mlp(32, 64, 8, activation=nn.Tanh),
        _labels(64, 32, 8),
        _cross_entropy(16.0),
        _sgd(1e-5),
        lambda update: 1000.0 if _drawn(update) < 0.04 else 1.0,
    ),
    "heavy tail": Task(
        _mlp(20, 64, 1),
        _noisy,
        _squares(1.0),
        _adam(1e-4),
        lambda update: (1e-4 + _drawn(update)) ** -1.0,
    ),
    "every 90th NaN": Task(
        _mlp(32, 64, 64, 64, 8),
        _labels(128, 32, 8),
        _cross_entropy(1.0),
        _adam(1e-3),
        _every(90, 2.0**15),
    ),
    "bursts of 3 x 256": Task(
        _mlp(64, 64, 10),
        _labels(64, 64, 10),
        _cross_entropy(8.0),
        _sgd(1e-5),
        _every(120, 256.0, 3),
    ),
}
"""Trainings in which some updates overflow at every scale above a low one: growth does not cause those skips."""

ALL: Mapping[str, Task] = {**TASKS, **OUTLIERS}
