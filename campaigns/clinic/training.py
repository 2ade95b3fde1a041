"""A typical fp16 training, split into methods so that a fault overrides only some. Has no fault itself."""

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
    """1797 handwritten digits, each as 64 grey values in 0..1, and their labels."""
    from sklearn.datasets import load_digits  # takes a second, and many importers do not need it

    read = load_digits()
    return torch.tensor(read.data / 16, dtype=torch.float32), torch.tensor(read.target)


class Training:
    """Classifies digits. ``folder`` is the run's own; attempts leave files there for the next."""

    healthy: float | None = None
    """The strength at which a fault of single batches disappears. Other numeric faults disappear in fp32."""

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

    # -- setup ----------------------------------------------------------------------------------------------------

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
        """Called once everything is set up."""

    # -- loop -----------------------------------------------------------------------------------------------------

    def train(self, skipped: Collection[int] = ()) -> None:
        """Run all updates, except ``skipped`` ones: their batches are drawn and dropped."""
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
        """Run the backward passes of one update, and return the last loss."""
        for _ in range(self.plan.accumulate):
            loss = self.loss(number)
            self.backward(loss / self.plan.accumulate)
            self.between()
        return loss

    def between(self) -> None:
        """Called after each backward pass."""

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
        """Step a scheduler, if there is one, after an update of the scaler."""

    def clear(self) -> None:
        self.optimizer.zero_grad()

    def log(self, loss: Tensor) -> None:
        ampmon.log({"loss": loss, "lr": self.optimizer.param_groups[0]["lr"]})

    def final_loss(self) -> float:
        """The loss over all digits after training."""
        self.model.eval()
        with torch.no_grad(), self.autocast():
            outputs = self.forward(self.images, 0)  # in a usual update
        return cross_entropy(outputs.float(), self.labels).item()

    def end(self) -> None:
        """Called at the end of the training."""
