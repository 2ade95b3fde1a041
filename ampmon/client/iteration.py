"""What the hooks gather between two updates, and the records written from it once its values are on the host."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from ampmon import wire
from ampmon.activations.gathering import ActivationSample, Lost
from ampmon.lints.optimizers import Schedule
from ampmon.numerics.histogram import Statistics
from ampmon.probe.arrivals import Arrived
from ampmon.probe.attribution import Kept, LossCopy, from_statistics, keep
from ampmon.probe.hooks import BackwardOrderLearner
from ampmon.probe.pending import Awaited, Pending
from ampmon.probe.timing import TimedSpan
from ampmon.training import outcome
from ampmon.training.outcome import AnyReading, Reading
from ampmon.training.series import Stream
from ampmon.wire.template import SteadyUpdates


_STATE = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
Place: TypeAlias = tuple[int, torch.device]
"""An optimizer, by its id, and a device with some of its gradients."""
CULPRITS_MAX = 64
"""The most culprits that a record names. It also holds their full number."""


# Bounded: optimizers that are recreated for each step have a new name each time.
@functools.lru_cache(maxsize=256)
def taken(optimizer: str, path: wire.StepPath) -> wire.OptimizerStep:
    """A step of an optimizer that was not skipped. Cached, since there are mostly few different ones."""
    return wire.OptimizerStep(optimizer=optimizer, path=path)


@dataclass(slots=True)
class Iteration:
    """What the hooks gathered since the last update. Optimizers live at least that long, so their ids are unique."""

    calls: list[int] = field(default_factory=list)
    """The optimizers that were unscaled and stepped, in order: ~id for an unscaling, id for a step."""
    steps: dict[int, wire.OptimizerStep] = field(default_factory=dict)
    """The optimizers whose `step()` was called, by id. Each is entered as not skipped."""
    culprits: dict[Place, list[Awaited[list[wire.Culprit]]]] = field(default_factory=dict)
    samples: list[Awaited[Statistics]] = field(default_factory=list)
    measured: set[int] = field(default_factory=set)
    """Indices of the parameters that are in a sample already."""
    sampling: bool | None = None
    """Whether this iteration is sampled; None until that is decided."""
    found: dict[int, bool] = field(default_factory=dict)
    """For each optimizer on a device, by id: whether its gradients overflowed. The host learns this in `step()`."""
    overflowed: bool | None = None
    """Whether any optimizer that `update()` takes into account overflowed; None if unknown."""
    spans: list[TimedSpan] = field(default_factory=list)
    """Timed work of this iteration on devices."""
    activations: ActivationSample | None = None
    arrived: Arrived | None = None
    """Statistics of the gradients of single backward passes, if these were measured."""
    losses: list[Kept] = field(default_factory=list)
    """The losses passed to `scale()`."""
    given: list[weakref.ref[Any] | None] = field(default_factory=list)
    """Weak references to these losses, to see whether training still holds them when the update ends."""
    loss: LossCopy | None = None
    """A copy of these losses on its way to the host, if the update may be skipped."""
    before: AnyReading | None = None
    """The scaler's state before `update()`."""

    def keep(self, outputs: Any) -> None:
        """Keep the loss or losses that `scale()` is called with."""
        keep(self.losses, outputs)
        self.given.append(weakref.ref(outputs) if type(outputs) is torch.Tensor else None)

    @property
    def brief(self) -> bool:
        """Whether it holds no sample. A sample takes long to decode."""
        return not (self.samples or self.activations or self.arrived)

    def ready(self) -> bool:
        """Whether all measured values but culprits are on the host. Does not wait."""
        for gathered in (*self.samples, self.before, self.activations, self.arrived, self.loss):
            if gathered is not None and not gathered.ready():
                return False
        return True

    def culprits_ready(self) -> bool:
        """Whether the culprits are on the host. Without a skip, they need not be. Does not wait."""
        return all(part.ready() for parts in self.culprits.values() for part in parts)

    def gradients(self) -> wire.Gradients | None:
        """The sample, if there is one. Waits for values that are not on the host yet."""
        return _joined(self.samples, self.arrived) if self.samples else None

    def skipped(
        self, optimizer: int, step: wire.OptimizerStep, order: BackwardOrderLearner
    ) -> wire.OptimizerStep:
        """``step`` as a skipped one, with the culprits of this optimizer (an id). Waits like `gradients`."""
        by_parameter = {
            culprit.parameter: culprit
            for (owner, _), parts in self.culprits.items()
            if owner == optimizer
            for part in parts
            for culprit in part.result()
        }
        ordered, how = order.sort(list(by_parameter))
        return wire.OptimizerStep(
            optimizer=step.optimizer,
            path=step.path,
            skipped=True,
            culprits=tuple(by_parameter[parameter] for parameter in ordered[:CULPRITS_MAX]),
            culprit_order=how,
            culprit_parameters=len(ordered),
        )

    def add(
        self, sample: Awaited[Statistics], indices: Iterable[int], covers: Place | None = None
    ) -> None:
        """Add a sample of parameters that are in none yet. It shows the culprits of the place that it ``covers``."""
        self.samples.append(sample)
        self.measured.update(indices)
        if covers is not None:
            self.blame(covers, Pending(lambda: from_statistics(sample.result()), sample))

    def blame(self, place: Place, culprits: Awaited[list[wire.Culprit]]) -> None:
        """Add culprits of an optimizer on one device."""
        self.culprits.setdefault(place, []).append(culprits)

    def losses_live(self) -> bool:
        """Whether training is known to still hold all losses."""
        return bool(self.given) and all(
            each is not None and each() is not None for each in self.given
        )

    def unscales_in_step(self, optimizer: int) -> bool:
        """Whether `step` itself unscales this optimizer (an id), so nothing else changes its gradients before."""
        return optimizer in self.steps and self.steps[optimizer].path == "plain"


@dataclass(slots=True, kw_only=True)
class PendingUpdate:
    """An update whose values may still be on their way from the device.

    ``known`` has the record's fields that are known already. ``done`` receives what the record holds: the steps, the
    number of skipped ones, the state before and after, and the sample if there is one. For a skip whose loss was not
    finite, it also receives where that began.
    """

    stream: Stream
    ordinal: int
    iteration: Iteration
    after: AnyReading
    growth_interval: int
    order: BackwardOrderLearner
    known: dict[str, Any]
    rates_moved: bool
    schedule: Schedule
    done: Callable[
        [Sequence[wire.OptimizerStep], int, Reading, Reading, wire.Gradients | None, Lost | None],
        None,
    ]
    manual: bool = False
    infers_skips: bool = False
    template: SteadyUpdates | None = None
    """Writes the record if it turns out to be of a steady update."""

    def submit(self) -> None:
        """Write the record once its values are on the host, and begin the next update. Does not wait."""
        self.stream.end_update(self.ready, self.write, brief=self.iteration.brief)

    def ready(self) -> bool:
        """Whether all values are on the host. Does not wait."""
        iteration = self.iteration
        if not (self.after.ready() and iteration.ready()):
            return False
        assert iteration.before is not None
        skips = self.infers_skips or True in iteration.before.result().found
        return not (skips and iteration.culprits) or iteration.culprits_ready()

    def write(self) -> None:
        """Write the record. Waits for values that are not on the host yet."""
        iteration = self.iteration
        assert iteration.before is not None
        before, after = iteration.before.result(), self.after.result()
        # Only the plain gear sets a template. Its `known` is a duration and a cost, in this order.
        template = self.template
        if (
            template is not None
            and template.scale == before.scale
            and self._is_steady(before, after)
        ):
            self.stream.put_steady(
                template, self.ordinal, after.growth_tracker, *self.known.values()
            )
            self.done(template.steps, 0, before, after, None, None)
            return
        activations, gradients = iteration.activations, iteration.gradients()
        event = outcome.why(before, after, self.manual, self.growth_interval)
        steps = tuple(iteration.steps.values())
        skipped = [event == "backoff"] * len(steps) if self.infers_skips else before.found
        if True in skipped:
            owners = zip(iteration.steps.items(), skipped, strict=True)
            steps = tuple(
                iteration.skipped(*owner, self.order) if skip else owner[1]
                for owner, skip in owners
            )
        loss = iteration.loss.state(before.scale) if iteration.loss and True in skipped else None
        lost = None
        if loss == "not_finite":
            lost = activations.lost() if activations is not None else (None, None)
        origin, module = lost or (None, None)
        self.stream.put(
            wire.Update,
            ordinal=self.ordinal,
            scale=before.scale,
            scale_after=after.scale,
            growth_tracker=after.growth_tracker,
            event=event,
            optimizers=steps,
            scheduled=self.schedule.written(self.rates_moved, True in skipped),
            gradients=gradients,
            activations=activations.result() if activations is not None else None,
            loss=loss,
            origin=origin,
            origin_module=module,
            **self.known,
        )
        self.done(steps, sum(skipped), before, after, gradients, lost)

    def _is_steady(self, before: Reading, after: Reading) -> bool:
        return (
            True not in before.found
            and not self.schedule.skipped
            and before.scale == after.scale
            and before.growth_tracker + 1 == after.growth_tracker
        )


def _joined(samples: list[Awaited[Statistics]], arrived: Arrived | None) -> wire.Gradients | None:
    joined = Statistics.joined([sample.result() for sample in samples])
    if arrived is not None:
        # The ``.grad`` of a parameter that is new in this iteration may be a sum whose parts nobody saw.
        watched = np.isin(joined.parameters, list(arrived.known))
        joined = joined.select(watched)
        if arrived.places:
            joined = arrived.result().instead(joined)
    return joined.to_wire() if len(joined) else None


def report_move(
    stream: Stream,
    before: AnyReading,
    after: AnyReading,
    manual: bool,
    done: Callable[[Reading, Reading], None],
) -> None:
    """Submit the event of an `update()` without a step before it, such as a scale set by hand. Does not wait.

    ``done`` receives the state before and after.
    """
    ordinal = stream.ordinal

    def write() -> None:
        old, new = before.result(), after.result()
        stream.event(
            "manual_set" if manual else "update_without_step",
            ordinal=ordinal,
            scale=plain(old.scale),
            scale_after=plain(new.scale),
        )
        done(old, new)

    stream.submit(lambda: before.ready() and after.ready(), write)


def plain(value: float) -> float | str:
    """The number itself, or its text (such as "inf") if JSON cannot hold it."""
    return value if math.isfinite(value) else str(value)


def plain_state(state: Mapping[str, object]) -> dict[str, float | str]:
    """Torch's own keys of a scaler's state, for an event. Keeps only numbers. Reads no tensor."""
    found = {key: state.get(key) for key in _STATE}
    return {
        key: plain(float(value)) for key, value in found.items() if isinstance(value, (int, float))
    }


def memory_peak() -> int | None:
    """Peak of allocated bytes on the fullest CUDA device; None without CUDA. Reads counters and never syncs."""
    if not torch.cuda.is_initialized():
        return None
    # Not `memory_stats`, which flattens and sorts hundreds of entries in Python.
    return fullest(map(torch.cuda.memory_stats_as_nested_dict, range(torch.cuda.device_count())))


def fullest(devices: Iterable[Mapping[str, Any]]) -> int:
    """The largest peak of allocated bytes, from torch's nested memory statistics of each device."""
    peaks: list[int] = [each["allocated_bytes"]["all"]["peak"] for each in devices]
    return max(peaks)
