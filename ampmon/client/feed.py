"""`stream`: loss scaling that no torch GradScaler does, told update by update. Knows no framework."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ampmon import wire
from ampmon.client import current_run
from ampmon.client.greeting import greet
from ampmon.client.iteration import taken
from ampmon.client.monitor_view import Reporting, rates
from ampmon.client.recorder import Recorder
from ampmon.errors import ConfigurationError
from ampmon.probe.graphs import capturing
from ampmon.probe.ring import Readback
from ampmon.system import signals
from ampmon.training import outcome
from ampmon.training.outcome import Reading
from ampmon.training.series import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rules by which a loss scale moves. The defaults are torch's.

    Raises ConfigurationError for invalid values.
    """

    scaler: str = "ampmon.stream"
    """Name of the scaler on the page, such as the class of a framework's scaler."""
    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    hysteresis: int = 1
    """Number of overflows since the last growth from which on each lowers the scale. Earlier ones only skip."""
    consecutive: bool = False
    """Whether ``hysteresis`` counts overflows in a row instead."""
    min_scale: float = 0.0
    """The lowest scale."""

    def __post_init__(self) -> None:
        numbers = self.init_scale, self.growth_factor, self.backoff_factor, self.min_scale
        if not all(math.isfinite(each) and each >= 0 for each in numbers):
            raise ConfigurationError(f"{self}: a scale or factor is not finite, or negative")
        if self.growth_interval < 0 or self.hysteresis < 1:
            raise ConfigurationError(
                f"{self}: growth_interval is at least 0, hysteresis at least 1"
            )

    def header(self, stream: str) -> wire.StreamHeader:
        """What a stream's header says of it. Rules that torch's scaler has not stand behind the name."""
        row = ", consecutive=1" if self.consecutive else ""
        more = f"(hysteresis={self.hysteresis}{row}, min_scale={self.min_scale:g})"
        plain = self.hysteresis == 1 and not self.min_scale
        return wire.StreamHeader(
            stream=stream,
            scaler=f"{self.scaler[:160]}{'' if plain else more}",
            device="none",
            init_scale=float(self.init_scale),
            growth_factor=float(self.growth_factor),
            backoff_factor=float(self.backoff_factor),
            growth_interval=min(self.growth_interval, wire.COUNT_MAX),
        )


Value = float | torch.Tensor
Kept = float | Readback


class Feed(Reporting):
    """A stream that is told of each update, and of nothing else: no gradients are looked at.

    ``updates`` and ``skips`` count what was told; `metrics`, ``findings`` and ``should_stop`` are those of
    `scaler.monitor`. Nothing here raises, syncs or blocks after construction.
    """

    def __init__(self, name: str, policy: Policy) -> None:
        self.updates = self.skips = 0
        self._name, self._policy = name, policy
        self._scale = 0.0
        self._tracker = self._cost_ns = 0
        self._last_ns: int | None = None
        self._recorder: Recorder | None = None
        self._stream: Stream | None = None
        if (run := current_run.ensure()) is not None:
            self._connect(run)
            greet(run)

    def update(self, scale: Value, new_scale: Value, skipped: bool | torch.Tensor) -> None:
        """Tell of an update: the scale in force, the one it left, and whether the optimizer's step was skipped.

        Each may be a tensor of one element on any device: it is copied, and nothing waits for it. Call it once an
        update, after the scale was moved. Never raises, syncs or blocks.
        """
        started = time.perf_counter_ns()
        run = current_run.current()
        if run is None:
            return
        try:
            if capturing():
                return
            if run is not self._recorder:
                self._connect(run)
            if (stream := self._stream) is None:
                return
            run.recent = stream
            values = [_kept(each) for each in (scale, new_scale, skipped)]
            duration = None if self._last_ns is None else (started - self._last_ns) / 1000
            self._last_ns = started
            ordinal, stream.ordinal = stream.ordinal, stream.ordinal + 1
            told = functools.partial(self._told, stream, ordinal, duration, self._cost_ns / 1000)
            stream.submit(_Pending(values, told))
            self._cost_ns = time.perf_counter_ns() - started
        except Exception as error:
            signals.let_through(error)
            run.failed("ampmon.stream", error)

    def metrics(self) -> dict[str, float]:
        """The newest known scale and skips, as `ampmon.metrics` names them. Neither syncs nor blocks."""
        return rates(self._scale, self.updates, self.skips)

    def __repr__(self) -> str:
        return f"<ampmon.Feed of run {self.run_id}: {self.updates} updates, {self.skips} skips>"

    def _connect(self, run: Recorder) -> None:
        self._last_ns, self._cost_ns = None, 0
        self._recorder, self._stream = run, run.stream(self._name)
        if self._stream is not None:
            run.recent = self._stream
            run.shown[self._stream.name] = self
            run.header(self._policy.header(self._stream.name))

    def _told(
        self,
        stream: Stream,
        ordinal: int,
        duration: float | None,
        cost: float,
        values: list[float],
    ) -> None:
        scale, after, found = values
        skipped = found != 0
        self._tracker = 0 if skipped or after != scale else self._tracker + 1
        # A skip may leave the scale as it is: then it is no back-off.
        before = Reading(scale, self._tracker, [])
        step = taken("optimizer", "plain")
        if skipped:
            step = wire.OptimizerStep(optimizer="optimizer", path="plain", skipped=True)
        stream.put(
            wire.Update,
            ordinal=ordinal,
            scale=scale,
            scale_after=after,
            growth_tracker=self._tracker,
            event=outcome.why(before, Reading(after, self._tracker, []), False, 0),
            optimizers=(step,),
            duration=duration,
            cost=cost,
        )
        self._scale = after
        self.updates += 1
        self.skips += skipped


@dataclass(slots=True)
class _Pending:
    """An update some of whose values may be on their way from a device."""

    values: list[Kept]
    told: Callable[[list[float]], None]
    brief = True

    def ready(self) -> bool:
        return all(isinstance(value, float) or value.ready() for value in self.values)

    def write(self) -> None:
        self.told(
            [value if isinstance(value, float) else float(value.result()) for value in self.values]
        )


def _kept(value: Any) -> Kept:
    """A number, or a copy of one that is on its way from a device."""
    if isinstance(value, torch.Tensor) and not value.is_cpu:
        return Readback(value.detach().reshape(()))
    return float(value)


def stream(name: str = "scaler", *, policy: Policy | None = None) -> Feed:
    """Record loss scaling that no torch GradScaler does: call `Feed.update` once per update.

    ``policy`` gives the diagnosis the rules by which the scale moves. Values may be one-element tensors on any device.
    Gradients are not measured. The first stream or scaler of a process starts a run.

    Raises ConfigurationError for an invalid policy. May write to disk and start the sender process. Never syncs.
    """
    return Feed(name, policy or Policy())
