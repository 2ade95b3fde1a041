"""Measures what backward passes bring to parameters: the gradient of one pass, which fp16 held, and not their sum.

A hook on a parameter sees it before it is added to ``.grad``, and before DDP's ranks are averaged. Hooks are there only
in iterations that are to be sampled. Nothing here keeps a gradient alive, changes one, or waits for a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from ampmon.numerics.histogram import Statistics
from ampmon.probe import eager, host
from ampmon.probe.accelerator import current_stream, is_asynchronous, on
from ampmon.probe.account import Account
from ampmon.probe.device import DeviceProbe
from ampmon.probe.gpu.loading import NotReady
from ampmon.probe.gradients import MEASURED, is_distributed, local_elements
from ampmon.probe.graphs import capturing
from ampmon.probe.ring import Readback
from ampmon.probe.timing import DeviceTimer, TimedSpan


PASSES = 4
"""So many of an iteration's passes are measured, at even distances, and the first that reaches a parameter."""
_ALONE = 1 << 16
"""So many elements are measured where they are; fewer are copied, and measured with others: a call costs more."""
_ROOM = 1 << 17
"""Copied elements that wait to be measured, at most: 512 kB of fp32."""


@dataclass(slots=True)
class Arrived:
    """Statistics of what passes brought to parameters, on the host or on their way there."""

    passes: dict[int, int]
    """How many were measured, by the parameter's place in the header."""
    statistics: list[Statistics]
    packed: list[tuple[list[int], Readback]]
    spans: list[TimedSpan]
    """What was timed of the work on devices."""

    def ready(self) -> bool:
        """Whether all values are on the host. Does not wait."""
        return all(each.ready() for _, each in self.packed)

    def result(self) -> Statistics:
        """What one pass brought on average, a row for each parameter. Waits for values that are not there yet."""
        fetched = [eager.unpack(copy.result(), places) for places, copy in self.packed]
        added = Statistics.added([*self.statistics, *fetched])
        return added.divided(np.array([self.passes[each] for each in added.parameters.tolist()]))


@dataclass(slots=True)
class _ElementTray:
    """Elements that wait on one stream of a device: of each tensor those to look at, its place, and how many it has."""

    parts: list[torch.Tensor] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    numels: list[int] = field(default_factory=list)
    held: int = 0
    packed: list[torch.Tensor] = field(default_factory=list)
    packed_of: list[int] = field(default_factory=list)


class Arrivals:
    """Hooks the parameters of an iteration, and gathers what its backward passes bring to them.

    ``living`` gives the parameters that there are, with their places in the header. A pass that makes a graph of itself
    is left out: `torch.autograd.grad` hands out what it brings, and adds it to no gradient.
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
        # A generator of its own: training's must not notice.
        self._random = np.random.default_rng()
        self._probes: dict[torch.device, DeviceProbe] = {}
        """One for each device: each has its own thread in a backward pass."""
        self._handles: dict[int, Any] = {}
        """Of the hooks, by the parameter's id."""
        weakref.finalize(self, _remove, self._handles)
        self._once: frozenset[int] = frozenset()
        """Parameters that one pass alone reached when they were last hooked: their ``.grad`` is what it brought."""
        self.usable = True
        """False once an error has been reported: nothing is hooked from then on."""
        self._clear()

    def _clear(self) -> None:
        self.watching = False
        """Whether the passes of the iteration at hand are looked at."""
        self._every, self._offset = 1, 0
        self._counts: dict[int, int] = {}
        self._passes: dict[int, int] = {}
        self._trays: dict[tuple[torch.device, torch.dtype, Any], _ElementTray] = {}
        self._statistics: list[Statistics] = []
        self._spans: list[TimedSpan] = []

    def begin(self, passes: int, *, reduced: bool) -> None:
        """Hook the parameters for so many passes; ``reduced``, if ``.grad`` is not what this process brings to it."""
        started = self._account.clock()
        self.drop()
        living = list(self._living()) if self.usable else []
        self.watching = bool(living)
        self._every = -(-passes // PASSES)
        # Which passes are looked at is another matter each time: they may be of different losses.
        self._offset = int(self._random.integers(self._every))
        try:
            for place, parameter in living:
                if _is_hookable(parameter):
                    hook = _ArrivalHook(
                        self, place, counts_only=place in self._once and not reduced
                    )
                    self._handles[id(parameter)] = parameter.register_hook(hook)
        except Exception as error:
            self._give_up(error)
        self._account.spend(started)

    def close(self, parameters: Iterable[torch.Tensor]) -> None:
        """Unhook parameters whose gradients are complete."""
        for parameter in parameters:
            if (handle := self._handles.pop(id(parameter), None)) is not None:
                handle.remove()
                _forget_hooks(parameter)

    def drop(self) -> None:
        """Unhook all, and let go of what was gathered."""
        if self._handles:
            self.close([parameter for _, parameter in self._living()])
            _remove(self._handles)
        self._clear()

    def end(self) -> Arrived | None:
        """Unhook all; what was gathered, if there is anything."""
        if self.watching:
            self._once = frozenset(place for place, count in self._counts.items() if count == 1)
        try:
            return self._gathered() if self.watching and self._passes else None
        except Exception as error:
            self._give_up(error)
            return None
        finally:
            self.drop()

    def _give_up(self, error: Exception) -> None:
        self.watching = self.usable = False
        self._report("measuring what a backward pass brings", error)

    def _gathered(self) -> Arrived | None:
        packed = []
        for (_, _, stream), tray in self._trays.items():
            # Behind the work that made the values.
            with on(stream), torch.no_grad():
                self._measure_together(tray)
                if tray.packed:
                    packed.append((tray.packed_of, Readback(torch.cat(tray.packed))))
        if not self.watching:
            return None
        return Arrived(self._passes, self._statistics, packed, self._spans)

    # -- called by backward passes ------------------------------------------------------------------

    def arrived(self, place: int, gradient: torch.Tensor, *, counts_only: bool) -> None:
        """A pass has brought a gradient to the parameter at this place."""
        if not self.watching or torch.is_grad_enabled():
            return
        started = self._account.clock()
        try:
            count = self._counts[place] = self._counts.get(place, 0) + 1
            measured = self._passes.get(place, 0)
            if measured <= PASSES and self._is_due(count, measured, counts_only=counts_only):
                self._look(place, gradient)
        except Exception as error:
            self._give_up(error)
        finally:
            self._account.spend(started)

    def _is_due(self, count: int, measured: int, *, counts_only: bool) -> bool:
        if not measured:
            return count > counts_only
        return (count + self._offset) % self._every == 0

    def _look(self, place: int, gradient: torch.Tensor) -> None:
        if is_functorch_wrapped_tensor(gradient) or capturing() or torch._C._is_tracing():
            return
        if gradient.layout is not torch.strided:  # of sparse ones the sum keeps each pass's values
            return
        elements = local_elements(gradient)
        numel, device = elements.numel(), elements.device
        if elements.dtype not in MEASURED or not numel or elements.is_meta:
            return
        stream = current_stream(device) if is_asynchronous(device) else None
        tray = self._trays.setdefault((device, elements.dtype, stream), _ElementTray())
        sample = "all" if self._probe(device).takes(device) else self._sample
        part = host.draw(elements, sample, self._random)
        looked = part.numel()
        if looked >= _ALONE:
            self._measure(tray, [part], [place], [numel])
        else:
            # Those that are not drawn are the gradient itself, into which training writes.
            tray.parts.append(part if looked < numel else part.clone())
            tray.places.append(place)
            tray.numels.append(numel)
            tray.held += looked
            if tray.held >= _ROOM:
                self._measure_together(tray)
        self._passes[place] = self._passes.get(place, 0) + 1

    def _measure_together(self, tray: _ElementTray) -> None:
        if tray.parts:
            self._measure(tray, tray.parts, tray.places, tray.numels)
            tray.parts, tray.places, tray.numels, tray.held = [], [], [], 0

    def _measure(
        self, tray: _ElementTray, parts: list[torch.Tensor], places: list[int], numels: list[int]
    ) -> None:
        device = parts[0].device
        probe = self._probe(device)
        if not probe.takes(device):
            self._statistics.append(host.measure_drawn(parts, numels, places))
            return
        span = self._timer.begin((device,))
        try:
            tray.packed.append(probe.statistics(parts))
        except NotReady:
            self._clear()  # an iteration of which a part is missing is none
            return
        tray.packed_of += places
        self._timer.end(span, self._spans)

    def _probe(self, device: torch.device) -> DeviceProbe:
        if device not in self._probes:
            self._probes[device] = DeviceProbe(self._report)
        return self._probes[device]


def _is_hookable(parameter: torch.Tensor) -> bool:
    """Whether passes bring it a gradient of its own shape: not to FSDP's, which is sharded on the way."""
    flat = getattr(parameter, "_is_flat_param", False)
    sharded = flat or is_distributed(parameter)
    return parameter.requires_grad and parameter.is_leaf and not sharded


def _forget_hooks(parameter: Any) -> None:
    """Have torch call nothing in coming passes: it calls even an empty list of hooks."""
    if parameter._backward_hooks is not None and not parameter._backward_hooks:
        parameter._backward_hooks = None


def _remove(handles: dict[int, Any]) -> None:
    while handles:
        handles.popitem()[1].remove()


class _ArrivalHook:
    """A hook that holds neither the parameter nor what gathers alive, and is left out of pickles without a warning."""

    __slots__ = ("_arrivals", "_counts_only", "_place")
    __torch_unserializable__ = True

    def __init__(self, arrivals: Arrivals, place: int, *, counts_only: bool) -> None:
        self._arrivals = weakref.ref(arrivals)
        self._place, self._counts_only = place, counts_only

    def __call__(self, gradient: torch.Tensor) -> None:
        if (arrivals := self._arrivals()) is not None:
            arrivals.arrived(self._place, gradient, counts_only=self._counts_only)
