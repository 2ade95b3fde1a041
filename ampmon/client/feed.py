"""`stream`: records loss scaling that is not done by a torch GradScaler, update by update. Depends on no framework.

Gradients are measured only if an integration says when they are complete and still scaled.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import torch

from ampmon import wire
from ampmon.client import current_run
from ampmon.client.iteration import Iteration, taken
from ampmon.client.measurer import Measurer
from ampmon.client.monitor_view import Reporting, rates, shares
from ampmon.client.recorder import Recorder
from ampmon.client.run import have_arrived, number, number_or_copy
from ampmon.config import Config
from ampmon.errors import ConfigurationError
from ampmon.probe.accelerator import capturing
from ampmon.probe.budget import Budget
from ampmon.probe.hooks import BackwardOrderLearner
from ampmon.probe.ring import Readback
from ampmon.probe.timing import Account, DeviceTimer
from ampmon.system import signals
from ampmon.training import outcome
from ampmon.training.outcome import Reading
from ampmon.training.parameters import ParameterRegistry
from ampmon.training.series import Stream


Names: TypeAlias = Callable[[], Mapping[int, str]]
"""Returns the names of parameters, by id."""
_CONFIG = Config()
_SAMPLE = None if _CONFIG.sample == "all" else _CONFIG.sample
_ONE = torch.ones((), device="cpu")  # whatever the default device is


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rules by which a loss scale changes. The defaults are torch's.

    Raises ConfigurationError for invalid values.
    """

    scaler: str = "ampmon.stream"
    """Name of the scaler on the page, such as the class of a framework's scaler."""
    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    hysteresis: int = 1
    """From this overflow on, counted since the last growth, each lowers the scale. Earlier ones only skip."""
    consecutive: bool = False
    """Whether ``hysteresis`` counts consecutive overflows instead."""
    min_scale: float = 0.0
    """The lowest scale."""

    def __post_init__(self) -> None:
        numbers = self.init_scale, self.growth_factor, self.backoff_factor, self.min_scale
        if not all(math.isfinite(each) and each >= 0 for each in numbers):
            raise ConfigurationError(f"{self}: a scale or factor is not finite, or negative")
        if self.growth_interval < 0 or self.hysteresis < 1:
            raise ConfigurationError(
                f"{self}: growth_interval must be at least 0, and hysteresis at least 1"
            )

    def header(self, stream: str) -> wire.StreamHeader:
        """The stream's header. Rules that torch's scaler does not have are appended to the scaler's name."""
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


class FeedGradients:
    """Measures the gradients of one optimizer while they are still scaled, within a monitor's default budget.

    ``names`` returns parameter names by id. ``sharded``: each rank holds other elements, so all ranks sample.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Names,
        *,
        sharded: bool,
        report: Callable[[str, Exception], None],
    ) -> None:
        self._optimizer, self._sharded = optimizer, sharded
        self._registry = ParameterRegistry(None, names)
        self._measurer = Measurer(self._registry, _CONFIG, report)
        self._budget = Budget(_CONFIG.every, _CONFIG.budget)
        self._order = BackwardOrderLearner(lambda: ())
        self.account = Account(self._budget, self._measurer.timer)
        self._iteration = Iteration()

    def look(self, ordinal: int, rank: int) -> bool:
        """Sample the gradients if that is due. Return whether there are parameters that the header lacks."""
        started = self.account.clock()
        iteration = self._iteration = Iteration()
        iteration.sampling = (rank == 0 or self._sharded) and self._budget.due(ordinal)
        met = self._registry.meet(self._optimizer)
        self._measurer.before_unscale(self._optimizer, iteration, _ONE, fused=(), dying=False)
        self.account.spend(started)
        return met

    def search(self) -> None:
        """Find the gradients that are not finite, where no sample has found them."""
        started = self.account.clock()
        self._measurer.search(self._optimizer, self._iteration, None)
        self.account.spend(started)

    def described(self, header: wire.StreamHeader) -> wire.StreamHeader:
        """The stream's header, with parameters and sampling settings added."""
        return msgspec.structs.replace(
            header,
            layout="sharded" if self._sharded else "replicated",
            sample=_SAMPLE,
            budget=self._budget.share,
            parameters=tuple(self._registry.parameters),
        )

    def taken(self) -> Iteration:
        """Return what was gathered since the last update, and clear it."""
        iteration, self._iteration = self._iteration, Iteration()
        return iteration

    def step(self, iteration: Iteration, *, skipped: bool, moved: bool) -> wire.OptimizerStep:
        """The optimizer's step in an update whose values are on the host. ``moved``: the scale changed."""
        step = taken(type(self._optimizer).__name__, "plain")
        if skipped:
            step = iteration.skipped(id(self._optimizer), step, self._order)
        if moved:
            self._budget.scale_changed()
        return step

    def interval(self) -> dict[str, Any]:
        """The fields about the budget in the record of a sample."""
        return {"interval": self._budget.every, "over_budget": self._budget.exceeded}

    def shares(self, sample: wire.Gradients) -> dict[str, float]:
        """Metrics of a sample, named as in `ampmon.metrics`."""
        return shares(sample, self._registry.parameters, _SAMPLE)


class Feed(Reporting):
    """A stream that you report each update to. It measures gradients only if an integration calls `watch`.

    ``updates`` and ``skips`` count what was reported. `metrics`, ``findings`` and ``should_stop`` work as in
    `scaler.monitor`. After construction, nothing here raises, syncs or blocks.
    """

    def __init__(self, name: str, policy: Policy) -> None:
        self.updates = self.skips = 0
        self._name, self._policy = name, policy
        self._scale = 0.0
        self._tracker = 0
        self._gradients: FeedGradients | None = None
        self._sample: wire.Gradients | None = None
        # It only counts the cost: without gradients, a budget limits nothing.
        self._account = Account(Budget("auto", 1.0), DeviceTimer(self._failed))
        self._recorder: Recorder | None = None
        self._stream: Stream | None = None
        if (run := current_run.ensure()) is not None:
            self._connect(run)
            current_run.greet(run)

    def update(self, scale: Value, new_scale: Value, skipped: bool | torch.Tensor) -> None:
        """Record an update: the scale it used, the scale after it, and whether the optimizer's step was skipped.

        Each may be a one-element tensor on any device, which is copied without waiting. Call this once per update,
        after the scale has changed. Never raises, syncs or blocks.
        """
        started = self._account.clock()
        with self._harmless() as stream:
            if stream is None:
                return
            values = [number_or_copy(each) for each in (scale, new_scale, skipped)]
            gradients = self._gradients
            iteration = gradients.taken() if gradients is not None else Iteration()
            sampled = bool(iteration.samples)
            duration = self._account.lap(started)
            more = gradients.interval() if gradients is not None and sampled else {}
            more |= {
                "ordinal": stream.ordinal,
                "duration": duration,
                "cost": self._account.settle(duration, 0.0, iteration.spans, sampled=sampled),
            }
            write = functools.partial(self._write, stream, iteration, more, values)
            arrived = have_arrived(values)
            stream.end_update(lambda: arrived() and iteration.ready(), write, brief=iteration.brief)
            self._account.handed_over(started, sampled=sampled)

    @property
    def watches_gradients(self) -> bool:
        return self._gradients is not None

    def watch(self, optimizer: torch.optim.Optimizer, names: Names, *, sharded: bool) -> None:
        """Measure the gradients of an optimizer whenever `unscaling` is called. Not public."""
        self._gradients = FeedGradients(optimizer, names, sharded=sharded, report=self._failed)
        self._account = self._gradients.account

    def unscaling(self) -> None:
        """Call this when the gradients of the next recorded update are complete and still scaled. Not public."""
        with self._harmless() as stream:
            if stream is None or self._gradients is None or self._recorder is None:
                return
            if self._gradients.look(stream.ordinal, self._recorder.rank):
                self._describe(self._recorder, stream)

    def overflowed(self) -> None:
        """Call this when gradients are unscaled, and some are not finite on this rank or another. Not public."""
        with self._harmless() as stream:
            if stream is not None and self._gradients is not None:
                self._gradients.search()

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[Stream | None]:
        """Yield the stream to write to, or None. Errors inside the block are counted, not raised."""
        try:
            run = current_run.current()
            if run is None or capturing():
                yield None
            else:
                if run is not self._recorder:
                    self._connect(run)
                run.recent = self._stream or run.recent
                yield self._stream
        except Exception as error:
            self._failed("ampmon.stream", error)

    def _failed(self, where: str, error: Exception) -> None:
        signals.let_through(error)
        if self._recorder is not None:
            self._recorder.failed(where, error)

    def metrics(self) -> dict[str, float]:
        """The newest known values, named as in `ampmon.metrics`. Never syncs or blocks."""
        found = rates(self._scale, self.updates, self.skips)
        if self._gradients is not None and self._sample is not None:
            found |= self._gradients.shares(self._sample)
        return found

    def __repr__(self) -> str:
        return f"<ampmon.Feed of run {self.run_id}: {self.updates} updates, {self.skips} skips>"

    def _connect(self, run: Recorder) -> None:
        self._account.restart()
        self._recorder, self._stream = run, run.stream(self._name)
        if self._stream is not None:
            run.recent = self._stream
            run.shown[self._stream.name] = self
            self._describe(run, self._stream)

    def _describe(self, run: Recorder, stream: Stream) -> None:
        header = self._policy.header(stream.name)
        run.header(self._gradients.described(header) if self._gradients is not None else header)

    def _write(
        self,
        stream: Stream,
        iteration: Iteration,
        more: dict[str, Any],
        values: list[float | Readback],
    ) -> None:
        scale, after, found = map(number, values)
        skipped = found != 0
        self._tracker = 0 if skipped or after != scale else self._tracker + 1
        # A skip may leave the scale unchanged. Then the event is no backoff.
        before = Reading(scale, self._tracker, [])
        if self._gradients is not None:
            step = self._gradients.step(iteration, skipped=skipped, moved=after != scale)
        else:
            step = wire.OptimizerStep(optimizer="optimizer", path="plain", skipped=skipped)
        gradients = iteration.gradients()
        self._sample = gradients or self._sample
        stream.put(
            wire.Update,
            scale=scale,
            scale_after=after,
            growth_tracker=self._tracker,
            event=outcome.why(before, Reading(after, self._tracker, []), False, 0),
            optimizers=(step,),
            gradients=gradients,
            **more,
        )
        self._scale = after
        self.updates += 1
        self.skips += skipped


def stream(name: str = "scaler", *, policy: Policy | None = None) -> Feed:
    """Record loss scaling that is not done by a torch GradScaler: call `Feed.update` once per update.

    ``policy`` tells the diagnosis by which rules the scale changes. Values may be one-element tensors on any device.
    Gradients are not measured. The first stream or scaler of a process starts a run.

    Raises ConfigurationError for an invalid policy. May write to disk and start the sender process. Never syncs.
    """
    return Feed(name, policy or Policy())
