"""Measures an optimizer's gradients for the current iteration: decides which ones, on which device, and how."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from ampmon.client.iteration import Iteration
from ampmon.config import Config
from ampmon.numerics.histogram import Statistics
from ampmon.probe import attribution, eager, host
from ampmon.probe.attribution import LossCopy
from ampmon.probe.budget import TimeAllowance
from ampmon.probe.device import DeviceCounts, DeviceProbe, RepeatableCount
from ampmon.probe.gpu.kernels import UNSCALED
from ampmon.probe.gpu.loading import NotReady
from ampmon.probe.gradients import local_gradients, plain_gradients, replicas
from ampmon.probe.pending import Pending, on_host
from ampmon.probe.ring import Readback
from ampmon.probe.timing import Baseline, DeviceTimer, TimedSpan, joined
from ampmon.training import outcome
from ampmon.training.parameters import ParameterRegistry
from ampmon.wire import Culprit


BASELINES = 3
"""How often torch's own unscaling is timed at first. A combined pass costs only what it takes beyond that time."""
_REFRESH = 32
"""Afterwards, torch's unscaling is timed once in this many updates that are not sampled."""

Gradient = tuple[int, torch.Tensor]
"""A parameter's place in the header, and the elements of its gradient on this rank."""


def fusable(scaler: type) -> dict[bool, frozenset[torch.dtype]]:
    """The dtypes that a combined pass may unscale, by whether fp16 gradients are allowed.

    Empty unless this class of scaler unscales as torch does.
    """
    torchs = outcome.maker(scaler, "_unscale_grads_") == GradScaler.__module__
    dtypes = UNSCALED if torchs else frozenset()
    return {True: dtypes, False: dtypes - {torch.float16}}


class Measurer:
    """Samples gradients and finds those that are not finite. Runs at once on a CPU, and is only enqueued elsewhere."""

    def __init__(
        self,
        registry: ParameterRegistry,
        config: Config,
        report: Callable[[str, Exception], None],
    ) -> None:
        self._registry = registry
        self._sample = config.sample
        # Its own generator, so the state of the training's generators does not change.
        self._random = np.random.default_rng()
        self.report = report
        self._probe = DeviceProbe(report)
        self.timer = DeviceTimer(report)
        self._baselines: WeakKeyDictionary[torch.optim.Optimizer, Baseline] = WeakKeyDictionary()
        """For each optimizer whose gradients were measured in the pass that unscales them."""
        self._standing: WeakKeyDictionary[torch.optim.Optimizer, RepeatableCount] = (
            WeakKeyDictionary()
        )
        """For each optimizer, the gradients that a device last searched for culprits."""
        self._searching = TimeAllowance(config.budget / 2)
        """Limits the time of searches that may find nothing."""
        self._stock: TimedSpan | None = None
        """The timing of torch's own unscaling, while that runs."""
        self._bare = 0
        self.set_aside: list[Gradient] | None = None
        """Gradients to measure in the pass that unscales them."""
        self._kept: list[object] = []
        """Objects in use when a graph's capture began, kept alive until it ends."""

    def gradients(self, optimizer: torch.optim.Optimizer) -> list[Gradient]:
        """The gradients of an optimizer's parameters that are in the header. One that is listed twice counts once."""
        place = self._registry.index
        found = {
            index: gradient
            for parameter, gradient in local_gradients(optimizer)
            if (index := place(parameter)) is not None
        }
        return list(found.items())

    def fp16(self, optimizer: torch.optim.Optimizer) -> list[str]:
        """Names of the parameters with fp16 gradients, which torch refuses to unscale."""
        parameters = self._registry.parameters
        gradients = self.gradients(optimizer)
        return [parameters[index].name for index, each in gradients if each.dtype == torch.float16]

    def before_unscale(
        self,
        optimizer: torch.optim.Optimizer,
        iteration: Iteration,
        inv_scale: torch.Tensor,
        *,
        fused: Collection[torch.dtype],
        dying: bool,
    ) -> None:
        """Measure what must be measured while gradients are still scaled.

        ``fused``: the dtypes that a combined pass may unscale and measure. ``dying``: the scale is so low that
        unscaling may turn finite gradients into inf.
        """
        self.set_aside = self._stock = None
        self._kept.clear()
        if iteration.sampling:
            if self._fusable(optimizer, iteration, fused):
                self._baselines.setdefault(optimizer, Baseline())
                return
            self._measure(optimizer, iteration)
        else:
            self._time_stock(optimizer)
        # On a device, reading the factor would wait, so the last known scale decides.
        if not outcome.is_invertible(inv_scale.item()) if inv_scale.is_cpu else dying:
            self.search(optimizer, iteration, None)

    def stand_aside(self, iteration: Iteration) -> None:
        """Forget the iteration, since a graph is being captured. Keep its pinned memory and events until afterwards."""
        self._kept += iteration, self._stock
        self.set_aside = self._stock = None

    def wants_baseline(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether torch's own unscaling needs more timings. Only updates that are not sampled provide them."""
        baseline = self._baselines.get(optimizer) if self._baselines else None
        return baseline is not None and baseline.begun < BASELINES

    def _time_stock(self, optimizer: torch.optim.Optimizer) -> None:
        """Start timing torch's own unscaling, in some of the updates."""
        if not self._baselines or optimizer not in self._baselines:
            return
        self._bare += 1
        if self.wants_baseline(optimizer) or self._bare % _REFRESH == 0:
            devices = {gradient.device for _, gradient in self.gradients(optimizer)}
            self._stock = self.timer.begin(devices)
            if self._stock is None:  # it cannot be timed: do not keep sparing updates for it
                self._baselines[optimizer].begun += 1

    def _fusable(
        self,
        optimizer: torch.optim.Optimizer,
        iteration: Iteration,
        dtypes: Collection[torch.dtype],
    ) -> bool:
        """Whether all gradients can be measured in the pass that unscales them. If so, set them aside for it."""
        gradients = []
        for parameter, gradient in plain_gradients(optimizer, dtypes) or ():
            index = self._registry.index(parameter)
            if index is None or index in iteration.measured:
                return False
            gradients.append((index, gradient))
        if gradients and all(self._probe.fuses(gradient.device) for _, gradient in gradients):
            self.set_aside = gradients
        return self.set_aside is not None

    def _measure(self, optimizer: torch.optim.Optimizer, iteration: Iteration) -> None:
        self._leave_out_replicas(optimizer, iteration)
        known = self.gradients(optimizer)
        # Two optimizers may share a parameter: it is measured once.
        fresh = [entry for entry in known if entry[0] not in iteration.measured]
        for indices, tensors in _grouped(fresh):
            device = tensors[0].device
            if self._probe.takes(device):
                span = self.timer.begin((device,))
                ready = partial(self.timer.launch, span)
                try:
                    sample = eager.fetch(self._probe.statistics(tensors, ready), indices)
                except NotReady:
                    continue
                self.timer.end(span, iteration.spans)
                covers = (id(optimizer), device) if len(fresh) == len(known) else None
                iteration.add(sample, indices, covers)
            else:
                statistics = host.measure(tensors, indices, self._sample, self._random)
                iteration.add(on_host(statistics), indices)

    def _leave_out_replicas(self, optimizer: torch.optim.Optimizer, iteration: Iteration) -> None:
        """Measure no element of what another rank measures. The server waits for this rank's sample all the same."""
        left_out = [
            index
            for parameter in replicas(optimizer)
            if (index := self._registry.index(parameter)) is not None
            and index not in iteration.measured
        ]
        if left_out:
            iteration.add(on_host(Statistics.nothing(left_out)), left_out)

    def unscale(
        self,
        optimizer: torch.optim.Optimizer,
        iteration: Iteration,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
    ) -> dict[torch.device, torch.Tensor] | None:
        """Unscale the gradients that were set aside and measure them in the same pass. None if there are none.

        Return what torch's ``_unscale_grads_`` does: found_inf by device, each an fp32 tensor with one element. The
        results are bit for bit the same, except for NaN payloads.
        """
        gradients, self.set_aside = self.set_aside, None
        if gradients is None:
            return None
        found: dict[torch.device, torch.Tensor] = {}
        inverse: dict[torch.device, torch.Tensor] = {}
        measured: list[tuple[list[int], torch.device, torch.Tensor]] = []
        spans: list[TimedSpan] = []
        with torch.no_grad():
            for indices, tensors in _grouped(gradients):
                device = tensors[0].device
                if device not in found:
                    # Copies, as torch makes them: devices must not write into one found_inf.
                    found[device] = found_inf.to(device, non_blocking=True, copy=True)
                    inverse[device] = inv_scale.to(device, non_blocking=True, copy=True)
                span = self.timer.begin((device,))
                ready = partial(self.timer.launch, span)
                packed = self._unscaled(tensors, found[device], inverse[device], ready)
                if packed is not None:
                    measured.append((indices, device, packed))
                self.timer.end(span, spans)
        try:
            if spans and measured:
                iteration.spans.append(joined(spans, self._baselines.get(optimizer)))
            for indices, device, packed in measured:
                iteration.add(eager.fetch(packed, indices), indices, (id(optimizer), device))
        except Exception as error:  # the gradients are unscaled, so training goes on
            self.report("keeping a sample", error)
        return found

    def _unscaled(
        self,
        tensors: list[torch.Tensor],
        found: torch.Tensor,
        inverse: torch.Tensor,
        ready: Callable[[], None],
    ) -> torch.Tensor | None:
        """Unscale gradients and return their statistics. None if these cannot be taken; training goes on."""
        packed = self._probe.unscale(tensors, found, inverse, ready)
        if packed is None:
            try:
                packed = self._probe.statistics(tensors, ready)
            except NotReady:
                pass
            except Exception as error:
                self.report("measuring before unscaling", error)
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, inverse)
        return packed

    def after_unscale(
        self,
        optimizer: torch.optim.Optimizer,
        iteration: Iteration,
        found: dict[torch.device, torch.Tensor],
        *,
        deferred: bool,
    ) -> None:
        """Find the culprits unless that is done. On a CPU, search if there are any; elsewhere the device decides.

        ``deferred``: the host will know of an overflow before anything else changes gradients on a device, and calls
        `search` then. Otherwise the device searches as often as half the budget allows: a search takes longer the more
        gradients there are. Without kernels the device cannot decide. Then samples or that later search find culprits.
        """
        if self._stock is not None:
            self.timer.end(self._stock, iteration.spans, of=self._baselines.get(optimizer))
            self._stock = None
        found = {
            device: flag
            for device, flag in found.items()
            if not (deferred and device.type != "cpu")
            and (self._probe.fuses(device) if self._probe.takes(device) else flag.item())
        }
        if iteration.sampling or all(device.type == "cpu" for device in found):
            self.search(optimizer, iteration, found, known=False)
        elif (began := self._searching.begin()) is not None:
            self._search_again(optimizer, iteration, found)
            self._searching.end(began)

    def _search_again(
        self,
        optimizer: torch.optim.Optimizer,
        iteration: Iteration,
        found: dict[torch.device, torch.Tensor],
    ) -> None:
        standing = self._standing.get(optimizer)
        device, *others = found
        known = (id(optimizer), device) in iteration.culprits
        if standing is not None and standing.device == device and not (others or known):
            counts = standing.ask(optimizer, found[device])
            if counts is not None:
                iteration.blame((id(optimizer), device), _of_counts(counts, standing.indices))
                return
        self.search(optimizer, iteration, found, known=False)

    def ask_losses(self, iteration: Iteration, *, infers: bool) -> None:
        """Start copying the losses passed to `scale()` to the host, if the update may be skipped. Waits for nothing.

        ``infers``: whether an optimizer skipped is not read from found_inf, but inferred from a scale that falls.
        """
        # Emptied, so that a record that waits for its device keeps no loss.
        losses, iteration.losses, before = iteration.losses, [], iteration.before
        if isinstance(before, outcome.Reading) and not infers:
            skipped = True in before.found
        else:
            skipped = iteration.overflowed is not False
        if not (losses and skipped) or iteration.loss is not None:
            return
        try:
            with torch.no_grad():
                iteration.loss = LossCopy(losses)
        except Exception as error:
            self.report("checking the loss", error)

    def search(
        self,
        optimizer: torch.optim.Optimizer,
        iteration: Iteration,
        found: dict[torch.device, torch.Tensor] | None,
        *,
        known: bool = True,
    ) -> None:
        """Find the culprits on the devices that may have some, unless that is done.

        ``found`` holds found_inf by device. None means all devices, before found_inf is known. Call this also when the
        host has learned of an overflow, while the gradients are only unscaled. ``known`` says that there are culprits.
        If not, and the kernel is not ready, skip the search: reading all gradients could be in vain.
        """
        searched = {place for owner, place in iteration.culprits if owner == id(optimizer)}
        if found is not None and found.keys() <= searched:
            return
        for indices, tensors in _grouped(self.gradients(optimizer)):
            device = tensors[0].device
            if device not in searched and (found is None or device in found):
                flag = found[device] if found is not None else None
                try:
                    culprits = self._culprits(optimizer, iteration, indices, tensors, flag)
                except NotReady:
                    if not known:
                        continue
                    culprits = self._flagged(iteration, indices, tensors)
                iteration.blame((id(optimizer), device), culprits)

    def _culprits(
        self,
        optimizer: torch.optim.Optimizer,
        iteration: Iteration,
        indices: list[int],
        tensors: list[torch.Tensor],
        found: torch.Tensor | None,
    ) -> Pending[list[Culprit]]:
        """The gradients of one device that are not finite. Reads all, unless a kernel sees that ``found`` is zero."""
        device = tensors[0].device
        if not self._probe.takes(device) or (found is None and device.type == "cpu"):
            return on_host(attribution.count(tensors, indices))
        asking = self._probe.culprits(tensors) if found is not None else None
        if found is not None and asking is not None and (counts := asking(found)) is not None:
            self._standing[optimizer] = RepeatableCount(optimizer, tensors, indices, asking)
            return _of_counts(counts, indices)
        return self._flagged(iteration, indices, tensors)

    def _flagged(
        self, iteration: Iteration, indices: list[int], tensors: list[torch.Tensor]
    ) -> Pending[list[Culprit]]:
        span = self.timer.begin((tensors[0].device,))
        flags = Readback(attribution.flag(tensors))
        self.timer.end(span, iteration.spans)
        return Pending(lambda: attribution.from_flags(flags.result(), indices), flags)


def _of_counts(counts: DeviceCounts, indices: list[int]) -> Pending[list[Culprit]]:
    return Pending(lambda: attribution.from_counts(counts.result(), indices), counts)


def _grouped(gradients: Iterable[Gradient]) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
    """Gradients grouped by device and dtype, in order of first appearance."""
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[torch.Tensor]]] = {}
    for index, gradient in gradients:
        key = gradient.device, gradient.dtype
        if (group := groups.get(key)) is None:
            group = groups[key] = [], []
        group[0].append(index)
        group[1].append(gradient)
    yield from groups.values()
