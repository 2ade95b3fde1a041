"""Measures the gradient that each backward pass brings to a parameter, because fp16 held that and not the sum.

A hook on the parameter sees the gradient before it is added to ``.grad``, and before DDP averages over ranks. A second
one tells that it was added: `torch.autograd.grad` only returns it. Hooks exist only in iterations that are due for a
sample. Nothing here keeps a gradient alive, changes one, or waits for a device.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from ampmon.numerics.histogram import Statistics
from ampmon.probe import eager, host
from ampmon.probe.accelerator import capturing, current_stream, on
from ampmon.probe.device import DeviceProbe
from ampmon.probe.gpu.loading import NotReady
from ampmon.probe.gradients import is_hookable, is_measurable, local_elements
from ampmon.probe.hooks import WeakHook, forget_hooks, remove_hooks
from ampmon.probe.pending import Awaited, on_host
from ampmon.probe.timing import Account, DeviceTimer, TimedSpan


PASSES = 4
"""The most passes measured in an iteration, evenly spaced, besides the first pass that reaches a parameter."""
_ALONE = 1 << 16
"""At least this many elements are measured in place. Fewer are copied and measured with others: a call costs more."""
_ROOM = 1 << 17
"""The most copied elements that wait to be measured: 512 kB of fp32."""


@dataclass(slots=True)
class Arrived:
    """Statistics of the gradients that passes brought to parameters, on the host or on their way there."""

    known: frozenset[int] = frozenset()
    """The places of the parameters whose arrivals were watched, where they could be."""
    places: dict[int, int] = field(default_factory=dict)
    """The parameter's place in the header, by the number of the arrival. Other arrivals are not in ``.grad``."""
    parts: list[Awaited[Statistics]] = field(default_factory=list)
    """Rows by the numbers of the arrivals."""
    spans: list[TimedSpan] = field(default_factory=list)
    """Timed work on devices."""

    def ready(self) -> bool:
        return all(each.ready() for each in self.parts)

    def result(self) -> Statistics:
        """Return the average over measured passes, a row for each parameter. Waits for values not yet on the host."""
        added = Statistics.added([self._of_grad(each.result()) for each in self.parts])
        passes = Counter(self.places.values())
        return added.divided(np.array([passes[each] for each in added.parameters.tolist()]))

    def _of_grad(self, statistics: Statistics) -> Statistics:
        """The rows of the arrivals that ``.grad`` holds, by the parameters' places."""
        kept = statistics.select(np.isin(statistics.parameters, list(self.places)))
        places = [self.places[number] for number in kept.parameters.tolist()]
        return kept.renumbered(np.array(places, np.int64))


@dataclass(slots=True)
class _ElementTray:
    """Elements of one dtype on one stream of a device: those that wait to be measured, and statistics of others."""

    waiting: list[host.Drawn] = field(default_factory=list)
    held: int = 0
    packed: list[torch.Tensor] = field(default_factory=list)
    packed_of: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Sum:
    """What a parameter's ``.grad`` is the sum of."""

    place: int = 0
    version: int = -1
    """The address of ``.grad`` and its version, which each pass that adds to it raises. If either is not as expected,
    training has discarded that tensor. It gets no weak reference, because torch swaps no tensor that has one."""
    is_view: bool = False
    passes: int = 0
    measured: list[int] = field(default_factory=list)
    """The numbers of the arrivals that were measured."""


class PassMeasurer:
    """Hooks the parameters during an iteration and measures the gradients that its backward passes bring to them.

    ``living`` yields the existing parameters with their places in the header. Only passes count whose gradients the
    optimizer's step finds in ``.grad``. So those of `torch.autograd.grad` are left out, and those that training
    discards, as a GAN's loop does: its generator's loss reaches the discriminator too. A pass that builds a graph of
    itself is left out too.
    """

    def __init__(
        self,
        living: Callable[[], Iterable[tuple[int, torch.Tensor]]],
        sample: int | Literal["all"],
        report: Callable[[str, Exception], None],
        account: Account,
        timer: DeviceTimer,
    ) -> None:
        self._living = living
        self._sample = sample
        self._report = report
        self._account, self._timer = account, timer
        # Its own generator, so that training's random numbers stay the same.
        self._random = np.random.default_rng()
        self._probes: dict[torch.device, DeviceProbe] = {}
        """One for each device, because each has its own thread in a backward pass."""
        self._handles: dict[int, list[Any]] = {}
        """Hook handles by the parameter's id."""
        weakref.finalize(self, _remove, self._handles)
        self._once: frozenset[int] = frozenset()
        """Places of parameters that only one pass reached when last hooked. Their ``.grad`` is that pass's gradient."""
        self.usable = True
        """False after an error was reported. Nothing is hooked from then on."""
        self._clear()

    def _clear(self) -> None:
        self.watching = False
        """Whether the current iteration's passes are measured."""
        self._every, self._offset = 1, 0
        self._arrived = Arrived()
        self._sums: dict[int, _Sum] = {}
        """By the parameter's place in the header."""
        self._under_way: dict[int, int | None] = {}
        """By place, an arrival that is not in ``.grad`` yet: its number, or None if it was not measured."""
        self._numbers = itertools.count()
        self._trays: dict[tuple[torch.device, torch.dtype, Any], _ElementTray] = {}

    def begin(self, passes: int, *, reduced: bool) -> None:
        """Hook the parameters for the expected number of passes.

        ``reduced`` says that ``.grad`` may be reduced over ranks, and so differ from this process's own gradient.
        """
        started = self._account.clock()
        self.drop()
        living = list(self._living()) if self.usable else []
        self.watching = bool(living)
        self._arrived = Arrived(frozenset(place for place, _ in living))
        self._every = -(-passes // PASSES)
        # Measure different passes each time, because they may belong to different losses.
        self._offset = int(self._random.integers(self._every))
        try:
            for place, parameter in living:
                if is_hookable(parameter):
                    self._hook(place, parameter, counts_only=place in self._once and not reduced)
        except Exception as error:
            self._give_up(error)
        self._account.spend(started)

    def _hook(self, place: int, parameter: Any, *, counts_only: bool) -> None:
        arrived, added = WeakHook(self.arrived, place, counts_only), WeakHook(self.added, place)
        # Kept before the second is registered: if torch refuses that, the first is still removed.
        handles = self._handles[id(parameter)] = [parameter.register_hook(arrived)]
        handles.append(parameter.register_post_accumulate_grad_hook(added))

    def close(self, parameters: Iterable[torch.Tensor]) -> None:
        """Unhook parameters whose gradients are complete."""
        for parameter in parameters:
            if (handles := self._handles.pop(id(parameter), None)) is not None:
                remove_hooks(handles)
                forget_hooks(parameter)

    def drop(self) -> None:
        """Unhook all parameters and discard what was gathered."""
        if self._handles:
            self.close([parameter for _, parameter in self._living()])
            # Those of parameters that no optimizer holds any more.
            _remove(self._handles)
        self._clear()

    def end(self) -> Arrived | None:
        """Unhook all parameters and return what was gathered, or None if nothing was."""
        if self.watching:
            self._once = frozenset(place for place, each in self._sums.items() if each.passes == 1)
        try:
            return self._gathered() if self.watching else None
        except Exception as error:
            self._give_up(error)
            return None
        finally:
            self.drop()

    def _give_up(self, error: Exception) -> None:
        self.watching = self.usable = False
        self._report("measuring what a backward pass brings", error)

    def _gathered(self) -> Arrived | None:
        arrived = self._arrived
        for place, each in self._sums.items():
            arrived.places.update(dict.fromkeys(each.measured, place))
        for (_, _, stream), tray in self._trays.items():
            # On the stream that makes the values, so that this runs after that work.
            with on(stream), torch.no_grad():
                self._measure_together(tray)
                if tray.packed:
                    arrived.parts.append(eager.fetch(torch.cat(tray.packed), tray.packed_of))
        return arrived if self.watching else None

    # -- called by backward passes ------------------------------------------------------------------

    def arrived(self, place: int, counts_only: bool, gradient: torch.Tensor) -> None:
        """Handle a gradient that a pass brought. With ``counts_only``, the first pass is counted, not measured."""
        if not self.watching:
            return
        if torch.is_grad_enabled():
            self._under_way[place] = None  # and not what `torch.autograd.grad` returned before
            return
        started = self._account.clock()
        try:
            so_far = self._sums.get(place) or _Sum()
            count, measured = so_far.passes + 1, len(so_far.measured)
            due = measured <= PASSES and self._is_due(count, measured, counts_only=counts_only)
            self._under_way[place] = self._look(gradient) if due else None
        except Exception as error:
            self._give_up(error)
        finally:
            self._account.spend(started)

    def added(self, place: int, parameter: torch.Tensor) -> None:
        """Handle the parameter's ``.grad``, to which the gradient that arrived last was added."""
        grad = parameter.grad
        if not self.watching or grad is None:
            return
        started = self._account.clock()
        try:
            self._add(place, grad)
        except Exception as error:
            self._give_up(error)
        finally:
            self._account.spend(started)

    def _add(self, place: int, grad: torch.Tensor) -> None:
        so_far = self._sums.setdefault(place, _Sum())
        is_view = grad._is_view()
        same = so_far.place == grad._cdata and grad._version > so_far.version
        # DDP replaces the sum by a view of its bucket, at the end of the first pass.
        same = same or (is_view and so_far.passes > 0 and not so_far.is_view)
        # A pass that builds a graph of itself replaces the sum by a new one that includes it.
        if not (same or torch.is_grad_enabled()):
            so_far = self._sums[place] = _Sum()
        so_far.place, so_far.version, so_far.is_view = grad._cdata, grad._version, is_view
        if place in self._under_way:
            so_far.passes += 1
            if (number := self._under_way.pop(place)) is not None:
                so_far.measured.append(number)

    def _is_due(self, count: int, measured: int, *, counts_only: bool) -> bool:
        if not measured:
            return count > counts_only
        return (count + self._offset) % self._every == 0

    def _look(self, gradient: torch.Tensor) -> int | None:
        """Measure a gradient, or set it aside for that. Return the arrival's number, or None if it cannot be."""
        if is_functorch_wrapped_tensor(gradient) or capturing() or torch._C._is_tracing():
            return None
        if gradient.layout is not torch.strided:  # a sparse sum keeps each pass's values
            return None
        elements = local_elements(gradient)
        if not is_measurable(elements):
            return None
        numel, device = elements.numel(), elements.device
        number = next(self._numbers)
        key = device, elements.dtype, current_stream(device)
        tray = self._trays.setdefault(key, _ElementTray())
        sample = "all" if self._probe(device).takes(device) else self._sample
        part = host.draw(elements, sample, self._random)
        looked = part.numel()
        if looked >= _ALONE:
            self._measure(tray, [(number, part, numel)])
        else:
            # A part with all elements is the gradient itself, which training overwrites.
            tray.waiting.append((number, part if looked < numel else part.clone(), numel))
            tray.held += looked
            if tray.held >= _ROOM:
                self._measure_together(tray)
        return number

    def _measure_together(self, tray: _ElementTray) -> None:
        if tray.waiting:
            self._measure(tray, tray.waiting)
            tray.waiting, tray.held = [], 0

    def _measure(self, tray: _ElementTray, arrivals: list[host.Drawn]) -> None:
        parts = [part for _, part, _ in arrivals]
        device = parts[0].device
        probe = self._probe(device)
        if not probe.takes(device):
            self._arrived.parts.append(on_host(host.measure_drawn(arrivals)))
            return
        span = self._timer.begin((device,))
        try:
            tray.packed.append(probe.statistics(parts))
        except NotReady:
            self._clear()  # discard the iteration, because a part of it is missing
            return
        tray.packed_of += [number for number, _, _ in arrivals]
        self._timer.end(span, self._arrived.spans)

    def _probe(self, device: torch.device) -> DeviceProbe:
        if device not in self._probes:
            self._probes[device] = DeviceProbe(self._report)
        return self._probes[device]


def _remove(handles: dict[int, list[Any]]) -> None:
    while handles:
        remove_hooks(handles.popitem()[1])
