"""A training in fp16 as users write it, in methods that a sickness replaces one of. Knows no sickness."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import ampmon
from campaigns.clinic.models import MODELS, OPTIMIZERS
from campaigns.clinic.patient import Plan


TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    """1797 handwritten digits, 64 grey values of 0..1 each, and what they are."""
    from sklearn.datasets import load_digits  # a second, which many import this file without

    read = load_digits()
    return torch.tensor(read.data / 16, dtype=torch.float32), torch.tensor(read.target)


class Training:
    """Digits told apart. ``folder`` is the run's own, for what one attempt leaves to the next."""

    healthy: float | None = None
    """The strength at which a sickness of single batches is none. Other sicknesses in numbers are none in fp32."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        torch.manual_seed(plan.seed)
        self.begin()
        self.model = self.make_model()
        self.optimizer = self.make_optimizer()
        self.scaler = self.make_scaler()
        self.images, self.labels = digits()
        self.dtype = TYPES[plan.dtype]
        self.made()

    # -- what is set up -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        ampmon.init("clinic", self.folder.name)

    def make_model(self) -> nn.Module:
        return MODELS[self.plan.model]()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.plan.optimizer](self.model.parameters(), self.plan.lr)

    def make_scaler(self) -> torch.amp.GradScaler:
        plan = self.plan
        return ampmon.GradScaler(
            "cpu",
            init_scale=plan.init_scale,
            growth_interval=plan.growth_interval,
            enabled=plan.enabled,
            model=self.model,
            monitor=ampmon.Config(every=plan.every, activations=plan.activations),
        )

    def made(self) -> None:
        """What is left to do once all is there."""

    # -- what is done again and again -----------------------------------------------------------------------------

    def train(self, skipped: Collection[int] = ()) -> None:
        """The batches of ``skipped`` updates are drawn and dropped."""
        for number in self.numbers():
            if number not in skipped:
                self.update(number)
            else:
                for _ in range(self.plan.accumulate):
                    self.batch(number)

    def numbers(self) -> Iterator[int]:
        yield from range(self.plan.updates)

    def update(self, number: int) -> None:
        loss = self.passes(number)
        self.clip()
        self.step()
        self.rescale()
        self.clear()
        self.log(loss)

    def passes(self, number: int) -> Tensor:
        """The backward passes of one update; the last loss."""
        for _ in range(self.plan.accumulate):
            loss = self.loss(number)
            self.backward(loss / self.plan.accumulate)
            self.between()
        return loss

    def between(self) -> None:
        """What is called after each backward pass."""

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(len(self.images), (self.plan.batch,))
        return self.images[drawn], self.labels[drawn]

    def loss(self, number: int) -> Tensor:
        inputs, targets = self.batch(number)
        with self.autocast():
            outputs = self.forward(inputs, number)
        return cross_entropy(outputs.float(), targets) * self.plan.loss

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=self.dtype)

    def forward(self, inputs: Tensor, number: int) -> Tensor:
        outputs: Tensor = self.model(inputs)
        return outputs

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def clip(self) -> None:
        if self.plan.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)

    def step(self) -> None:
        self.scaler.step(self.optimizer)

    def rescale(self) -> None:
        self.scaler.update()

    def schedule(self, *, skipped: bool) -> None:
        """What is done with a scheduler after an update of the scaler."""

    def clear(self) -> None:
        self.optimizer.zero_grad()

    def log(self, loss: Tensor) -> None:
        ampmon.log({"loss": loss, "lr": self.optimizer.param_groups[0]["lr"]})

    def final_loss(self) -> float:
        """Of all digits, when training is over."""
        self.model.eval()
        with torch.no_grad(), self.autocast():
            outputs = self.model(self.images)
        return cross_entropy(outputs.float(), self.labels).item()

    def end(self) -> None:
        """What is left to do after the last update."""
