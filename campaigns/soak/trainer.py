"""A training that reports, apart from ampmon, what it recorded: two optimizers, real overflow, samples, scalars."""

from __future__ import annotations

import importlib
import itertools
import math
import random
import time

import torch

import ampmon
from ampmon.client import current_run
from campaigns.soak.trainer_log import TrainerLogWriter


_WEIGHTS = ((120.0, 1.0), (1.0, 50.0), (120.0, 50.0))
"""Factors of the two losses: one, the other or both overflow once the scale has grown."""
_NOT_FINITE = (math.nan, math.inf)


def train(
    log_file: str, seed: int, updates: int, pause_s: float, resume_step: int | None, scale: float
) -> None:
    """Train for ``updates`` updates with pauses of ``pause_s`` seconds on average, and finish."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    chance, writer = random.Random(seed), TrainerLogWriter(log_file)
    ampmon.init("soak", "training", resume_step=resume_step)
    scaler = ampmon.GradScaler(
        "cpu", init_scale=scale, growth_interval=5, monitor=ampmon.Config(every=7)
    )
    training, monitor, recorder = _Training(scaler), scaler.monitor, current_run.current()
    assert monitor is not None
    assert recorder is not None
    spool = recorder._spool
    for _ in range(updates):
        samples = monitor.samples
        did = training.update()
        sampled = monitor.samples > samples
        writer.write("update", **did, sampled=sampled, in_memory=spool.kept == "memory")
        loss = training.loss if chance.random() < 0.95 else chance.choice(_NOT_FINITE)
        ampmon.log({"loss": loss})
        writer.write("loss", loss=loss, in_memory=spool.kept == "memory")
        time.sleep(chance.uniform(0, 2 * pause_s))
    writer.write("finishing")
    ampmon.finish()
    writer.write("finished")


def warm() -> None:
    """Load everything that a first update needs, which takes seconds."""
    torch.set_num_threads(1)
    _Training(torch.amp.GradScaler("cpu")).update()
    importlib.import_module("ampmon.client.scaler")


class _Training:
    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        first = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)
        )
        second = torch.nn.Linear(16, 4)
        self._models = (first, second)
        self._optimizers = {
            "SGD": torch.optim.SGD(first.parameters(), lr=1e-3),
            "AdamW": torch.optim.AdamW(second.parameters(), lr=1e-3),
        }
        self._scaler = scaler
        self._weights = itertools.cycle(_WEIGHTS)
        self.loss = 0.0

    def update(self) -> dict[str, object]:
        """Make one update, and return what torch itself did."""
        scaler, optimizers = self._scaler, self._optimizers
        self._backward()
        for optimizer in optimizers.values():
            scaler.step(optimizer)
        scale = scaler.get_scale()
        skipped = [name for name, each in optimizers.items() if self._overflowed(each)]
        scaler.update()
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        return {"scale": scale, "scale_after": scaler.get_scale(), "skipped": skipped}

    def _backward(self) -> None:
        inputs, targets = torch.randn(8, 16), torch.randint(0, 4, (8,))
        with torch.autocast("cpu", dtype=torch.float16):
            losses = [
                torch.nn.functional.cross_entropy(model(inputs), targets) for model in self._models
            ]
        first, second = next(self._weights)
        loss = first * losses[0] + second * losses[1]
        self.loss = loss.item()
        self._scaler.scale(loss).backward()

    def _overflowed(self, optimizer: torch.optim.Optimizer) -> bool:
        found = self._scaler._found_inf_per_device(optimizer)
        return any(flag.item() for flag in found.values())
