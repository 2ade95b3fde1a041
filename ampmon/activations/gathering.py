"""Gathers an iteration's activations: magnitudes in the forward pass, gradient statistics in the backward pass.

Keeps no activation and no gradient alive. Waits for no device: values there are enqueued, and fetched together.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from ampmon import wire
from ampmon.numerics.histogram import Statistics
from ampmon.probe import eager, host
from ampmon.probe.accelerator import current_stream, on
from ampmon.probe.device import DeviceProbe
from ampmon.probe.gpu.loading import NotReady
from ampmon.probe.gradients import MEASURED, local_elements
from ampmon.probe.pending import Awaited, on_host
from ampmon.probe.ring import Readback


_DEPTH_MAX = 8


_Owner: TypeAlias = tuple[int, int]
"""The number of the backward pass that brought a gradient, and the module."""


@dataclass(slots=True)
class _Tray:
    """Values enqueued on one stream of a device: statistics with their modules, magnitudes with their numbers."""

    packed: list[tuple[_Owner, torch.Tensor]] = field(default_factory=list)
    magnitudes: list[tuple[int, torch.Tensor]] = field(default_factory=list)


@dataclass(slots=True)
class _Call:
    """A module's call: the numbers of the magnitudes of its inputs and its outputs."""

    module: int
    given: list[int]
    put_out: list[int]


Lost: TypeAlias = tuple[wire.ForwardOrigin | None, int | None]
"""Where a loss that is not finite began, and the place of the module, as far as that is known."""


class Gathering:
    """One iteration's sample of the activations while it is being gathered.

    ``measures`` says whether to measure the gradients that come back, too. Otherwise only magnitudes are gathered.
    """

    def __init__(
        self,
        sample: int | Literal["all"],
        generator: np.random.Generator,
        probe: DeviceProbe,
        *,
        measures: bool,
    ) -> None:
        self.measures = measures
        self._sample = sample
        self._probe = probe
        self._random = generator
        self._found = ActivationSample(measured=measures)
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor] | None, int, int]] = {}
        """By a tensor's id: the tensor, its version, and the number of its magnitude."""
        self._put_out: set[int] = set()
        self._numbers = 0
        self._awaited: dict[int, int] = {}
        """By module: the elements of the outputs so far whose gradients are to be measured."""
        self._shares: dict[int, float] = {}
        """By module: the share to look at. The same for all its gradients, so that none weighs too much."""
        self._statistics: list[tuple[_Owner, Statistics]] = []
        self._elements: dict[_Owner, int] = {}
        self._added: set[int] = set()
        """The backward passes that added to a parameter's gradient."""
        self._trays: dict[tuple[torch.device, Any], _Tray] = {}

    def called(self, module: int, inputs: Any, output: Any) -> list[torch.Tensor]:
        """Note a module's inputs and outputs. Return the fp16 outputs whose gradients are to be measured."""
        awaited = []
        put_out = {id(tensor): tensor for tensor in _tensors(output) if _counts(tensor)}
        given = [
            self._given(tensor, in_place=id(tensor) in put_out)
            for tensor in _tensors(inputs)
            if _has_values(tensor)
        ]
        call = _Call(module, given, [])
        for tensor in put_out.values():
            number = self._known(tensor)
            if number is None or number not in self._put_out:
                # An input that takes no gradient was measured without its sign, as a mask.
                if number is None or not tensor.requires_grad:
                    number = self._look(tensor, signed=True)
                self._put_out.add(number)
                if module not in self._found.outputs:
                    self._found.outputs[module] = []
                    # The task id is not -1 within a backward pass.
                    self._found.recomputed |= torch._C._current_graph_task_id() != -1
                self._found.outputs[module].append(number)
                if tensor.dtype == torch.float16 and tensor.requires_grad and not tensor.is_leaf:
                    awaited.append(tensor)
                    elements = local_elements(tensor).numel()
                    self._awaited[module] = self._awaited.get(module, 0) + elements
            call.put_out.append(number)
        self._found.calls.append(call)
        return awaited if self.measures else []

    def gradient(self, module: int, gradient: torch.Tensor) -> None:
        """Measure a gradient that came back to a module's output."""
        elements = local_elements(gradient)
        if not elements.numel():
            return
        owner = torch._C._current_graph_task_id(), module
        self._elements[owner] = self._elements.get(owner, 0) + elements.numel()
        if is_host(elements):
            sample = self._sample_of(module, elements)
            statistics = host.measure([elements], [module], sample, self._random)
            self._statistics.append((owner, statistics))
        else:
            tray = self._tray(elements.device)
            tray.packed.append((owner, self._statistics_of(elements)))

    def added(self, _: torch.Tensor) -> None:
        """Note that the current backward pass added to a parameter's gradient."""
        self._added.add(torch._C._current_graph_task_id())

    def _is_kept(self, owner: _Owner) -> bool:
        """Whether a gradient is of a pass for the optimizer's step, and not of `torch.autograd.grad`.

        Under reentrant checkpointing, a segment without parameters has a pass of its own, which adds to no gradient.
        """
        return self._found.recomputed or not self._added or owner[0] in self._added

    def _sample_of(self, module: int, elements: torch.Tensor) -> int | Literal["all"]:
        """How many elements of a gradient to look at: all, if any is not finite, since one may be the only one."""
        if self._sample == "all" or not all(map(math.isfinite, torch.aminmax(elements))):
            return "all"
        awaited = max(self._awaited.get(module, 0), elements.numel())
        share = self._shares.setdefault(module, self._sample / awaited)
        return max(round(share * elements.numel()), 1)

    def _statistics_of(self, elements: torch.Tensor) -> torch.Tensor:
        try:
            return self._probe.statistics([elements])
        except NotReady:  # plain torch, which computes the magnitudes too
            return eager.launch([elements])

    def gathered(self) -> ActivationSample:
        """Return the sample, with values on devices on their way to the host. Nothing can be added afterwards."""
        found = self._found
        # Lists, because a pass on another thread may add to them.
        for (_, stream), tray in list(self._trays.items()):
            kept = [each for each in list(tray.packed) if self._is_kept(each[0])]
            magnitudes = list(tray.magnitudes)
            # Behind the work that computes the values: the backward pass runs on the streams of the forward pass.
            with on(stream):
                if kept:
                    modules = [module for (_, module), _ in kept]
                    rows = torch.cat([packed for _, packed in kept])
                    found.parts.append(eager.fetch(rows, modules))
                if magnitudes:
                    on_way = Readback(torch.stack([each for _, each in magnitudes]))
                    found.magnitudes_on_device.append(([place for place, _ in magnitudes], on_way))
        for owner, count in list(self._elements.items()):
            if self._is_kept(owner):
                found.elements[owner[1]] = found.elements.get(owner[1], 0) + count
        found.parts += [on_host(each) for owner, each in self._statistics if self._is_kept(owner)]
        return found

    def _given(self, tensor: torch.Tensor, *, in_place: bool) -> int:
        """The number of an input's magnitude. For an input that the module wrote into, that from before."""
        number = self._known(tensor, stale=in_place)
        # A mask holds -inf by design. No gradient comes back to it.
        return self._look(tensor, signed=tensor.requires_grad) if number is None else number

    def _known(self, tensor: torch.Tensor, *, stale: bool = False) -> int | None:
        """The number of a tensor's magnitude, if known. With ``stale``, also that from before it was written into."""
        seen = self._seen.get(id(tensor))
        if seen is None or not (stale or seen[1] == tensor._version):
            return None
        # An entry without a reference is a parameter, which stays alive.
        return seen[2] if seen[0] is None or seen[0]() is tensor else None

    def _look(self, tensor: torch.Tensor, *, signed: bool) -> int:
        """Take a tensor's magnitude now, and return its number. Without ``signed``, take its largest element."""
        number = self._numbers
        self._numbers += 1
        # A module's own parameter stays alive anyway, and torch swaps no parameter that has a weak reference.
        own = isinstance(tensor, torch.nn.Parameter)
        self._seen[id(tensor)] = (None if own else weakref.ref(tensor), tensor._version, number)
        elements = local_elements(tensor)
        if not elements.numel():
            return number
        low, high = torch.aminmax(elements)
        magnitude = torch.maximum(-low, high) if signed else high
        if is_host(magnitude):
            self._found.magnitudes[number] = magnitude.item()
        else:
            tray = self._tray(magnitude.device)
            tray.magnitudes.append((number, magnitude.to(eager.widest(magnitude.device))))
        return number

    def _tray(self, device: torch.device) -> _Tray:
        return self._trays.setdefault((device, current_stream(device)), _Tray())


@dataclass(slots=True)
class ActivationSample:
    """One iteration's sample, on the host or on its way there. Modules are given by their places in the header."""

    measured: bool
    recomputed: bool = False
    """Whether a module was first seen in the backward pass, as under reentrant checkpointing."""
    outputs: dict[int, list[int]] = field(default_factory=dict)
    """By module, in forward order: the numbers of the outputs that no module before it has put out."""
    calls: list[_Call] = field(default_factory=list)
    elements: dict[int, int] = field(default_factory=dict)
    magnitudes: dict[int, float] = field(default_factory=dict)
    parts: list[Awaited[Statistics]] = field(default_factory=list)
    magnitudes_on_device: list[tuple[list[int], Readback]] = field(default_factory=list)

    def ready(self) -> bool:
        magnitudes = all(copy.ready() for _, copy in self.magnitudes_on_device)
        return magnitudes and all(each.ready() for each in self.parts)

    def result(self) -> wire.Activations | None:
        """The sample for the record, or None if nothing was measured. Waits for values that are not there yet."""
        if not (self.outputs and self.measured):
            return None
        modules = sorted(self.outputs) if self.recomputed else list(self.outputs)
        values = self._values()
        forward = [
            _largest(values.get(each, 0.0) for each in self.outputs[module]) for module in modules
        ]
        parts = (each.result() for each in self.parts)
        statistics = Statistics.added([Statistics.nothing(modules), *parts])
        elements = [self.elements.get(module, 0) for module in modules]
        return wire.Activations(
            gradients=statistics.to_wire(),
            elements=np.array(elements, "<i8").tobytes(),
            forward=np.array(forward, "<f8").tobytes(),
        )

    def lost(self) -> Lost:
        """Where a loss that is not finite began. Waits for values that are not there yet."""
        values = self._values()

        def finite(numbers: Iterable[int]) -> bool:
            return all(math.isfinite(values.get(number, 0.0)) for number in numbers)

        spoiled = [call for call in self.calls if not finite(call.put_out)]
        made = [call.module for call in spoiled if finite(call.given)]
        if made:
            # A module's hook runs after those of the modules in it, unless these are recomputed in the backward pass.
            return "forward", max(made) if self.recomputed else made[0]
        if not self.calls:
            return None, None
        return ("input" if spoiled else "loss"), None

    def departed(self, other: ActivationSample, share: float) -> int | None:
        """The first module whose largest output differs by ``share`` from the other pass's, while its inputs do not."""
        ours, others = self._values(), other._values()

        def alike(pair: tuple[list[int], list[int]]) -> bool:
            one = _largest(ours.get(each, 0.0) for each in pair[0])
            two = _largest(others.get(each, 0.0) for each in pair[1])
            return not all(pair) or abs(one - two) <= share * max(one, two)

        for call, same in zip(self.calls, other.calls, strict=False):
            if call.module != same.module:
                return None
            if alike((call.given, same.given)) and not alike((call.put_out, same.put_out)):
                return call.module
        return None

    def _values(self) -> dict[int, float]:
        """The magnitudes by number. Waits for those that are not there yet."""
        for numbers, copy in self.magnitudes_on_device:
            self.magnitudes.update(zip(numbers, copy.result().tolist(), strict=True))
        self.magnitudes_on_device = []
        return self.magnitudes


def _largest(values: Iterable[float]) -> float:
    """The largest value. A NaN counts as larger than all others."""
    largest = 0.0
    for value in values:
        largest = largest if value <= largest or math.isnan(largest) else value
    return largest


def is_host(tensor: torch.Tensor) -> bool:
    """Whether values can be read without waiting for a device."""
    return tensor.is_cpu


def _tensors(output: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in a module's output: a tensor, or tuples, lists and mappings of them."""
    if isinstance(output, torch.Tensor):
        yield output
    elif depth < _DEPTH_MAX and isinstance(output, (tuple, list, Mapping)):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(part, depth + 1)


def _counts(tensor: torch.Tensor) -> bool:
    """Whether an output is an activation: it has values of a measured dtype and is not, for example, an fp32 mask."""
    return (tensor.requires_grad or tensor.dtype == torch.float16) and _has_values(tensor)


def _has_values(tensor: torch.Tensor) -> bool:
    return (
        tensor.dtype in MEASURED
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and not (tensor.is_meta or tensor.is_inference())
        and not is_functorch_wrapped_tensor(tensor)
    )
