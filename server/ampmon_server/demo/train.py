"""The demo's training, written as any user of ampmon would: fp16 autocast, a GradScaler, and `ampmon.log`.

It starts at scale 1, where fp16 loses much of the gradient, and lets the scale grow quickly until it overflows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch

import ampmon
from ampmon_server.demo.model import GPT, LARGE, SMALL, ModelSize
from ampmon_server.demo.text import ALPHABET, Text


DOUBLINGS = 18
"""From scale 1 to about where this model overflows."""
CLIMB_S = 25.0
"""How long the climb should take, so that users can watch it."""
TIMED = 3
"""Updates to time before choosing the pace of the climb."""
INTERVALS = (10, 2000)
"""Limits of growth_interval. Above TIMED, because a scaler whose tracker has passed the interval never grows."""
SEARCH_SKIPS = 3
"""After this many skips the ceiling is known, and growth slows down."""
CALMER = 20
"""Factor by which growth_interval rises then."""
LEARNING_RATE = 2e-3
LOOK_EVERY = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train. ``growth_interval`` applies during the climb; None chooses it from the first updates' timings."""

    device: str
    steps: int
    seed: int
    growth_interval: int | None

    @property
    def size(self) -> ModelSize:
        return LARGE if self.device == "cuda" else SMALL

    def config(self) -> dict[str, object]:
        """The configuration that the run's page shows."""
        return {"device": self.device, "dtype": "float16", "seed": self.seed, **asdict(self.size)}


@dataclass(slots=True)
class Progress:
    """The state after ``updates`` updates. ``loss`` is smoothed, in nats per character."""

    updates: int
    loss: float
    scale: float
    skips: int


def train(plan: Plan, text: Text, stopping: Callable[[], bool]) -> Iterator[Progress]:
    """Train and report to ampmon's run. Yield the progress every few updates, until done or ``stopping()``."""
    torch.manual_seed(plan.seed)
    model = GPT(len(ALPHABET), plan.size).to(plan.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    interval = plan.growth_interval or INTERVALS[0]
    scaler = ampmon.GradScaler(plan.device, init_scale=1.0, growth_interval=interval, model=model)
    pace = Pace(scaler, fixed=plan.growth_interval is not None)
    smooth = None
    for update in range(plan.steps):
        batch = text.batch(plan.size.batch, plan.size.context)
        with torch.autocast(plan.device, dtype=torch.float16):
            loss = model(*batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ampmon.log({"loss": loss, "lr": LEARNING_RATE})

        skips = pace.updated()
        done = update == plan.steps - 1 or stopping()
        if done or update % LOOK_EVERY == 0:
            # Reading the loss and the scale synchronizes with the device, so do not do it at every update.
            now = loss.item()
            smooth = now if smooth is None else 0.8 * smooth + 0.2 * now
            yield Progress(update + 1, smooth, scaler.get_scale(), skips)
        if done:
            return


class Pace:
    """Controls how fast the scale grows: quickly until the ceiling is known, then as slowly as in a usual training."""

    def __init__(self, scaler: ampmon.GradScaler, *, fixed: bool) -> None:
        self._scaler = scaler
        self._fixed = fixed
        self._searching = True
        self._times: list[float] = []

    def updated(self) -> int:
        """Count an update. Return how many steps were skipped so far."""
        if not self._fixed:
            self._choose()
        monitor = self._scaler.monitor
        skips = monitor.skips if monitor else 0
        if self._searching and skips >= SEARCH_SKIPS:
            self._searching = False
            calmer = CALMER * self._scaler.get_growth_interval()
            self._scaler.set_growth_interval(min(calmer, INTERVALS[1]))
        return skips

    def _choose(self) -> None:
        self._times.append(time.monotonic())
        if len(self._times) > TIMED:
            laps = [
                after - before for before, after in zip(self._times, self._times[1:], strict=False)
            ]
            interval = round(CLIMB_S / DOUBLINGS / statistics.median(laps))
            self._scaler.set_growth_interval(min(max(interval, INTERVALS[0]), INTERVALS[1]))
            self._fixed = True
