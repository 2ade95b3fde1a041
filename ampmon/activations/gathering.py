"""What one iteration puts through the modules of a model: magnitudes forward, statistics of the gradients back.

Keeps no activation and no gradient alive, and waits for no device: there, values are enqueued and fetched together.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from ampmon import wire
from ampmon.histogram import Statistics
from ampmon.probe import eager, host
from ampmon.probe.accelerator import current_stream, is_asynchronous, on
from ampmon.probe.device import DeviceProbe
from ampmon.probe.gradients import local_elements
from ampmon.probe.ring import Readback


LOSS = -1
"""Stands in a module's place for what `scale()` was given."""

_DEPTH_MAX = 8
_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@dataclass(slots=True)
class _Tray:
    """Values enqueued on one stream of a device, and the module of each."""

    packed: list[torch.Tensor] = field(default_factory=list)
    packed_of: list[int] = field(default_factory=list)
    magnitudes: list[torch.Tensor] = field(default_factory=list)
    magnitudes_of: list[int] = field(default_factory=list)


class Gathering:
    """One iteration's sample of the activations, while it is being gathered."""

    def __init__(
        self, sample: int | Literal["all"], generator: np.random.Generator, probe: DeviceProbe
    ) -> None:
        self._sample = sample
        self._probe = probe
        self._random = generator
        self._order: dict[int, None] = {}
        """Modules, in the order in which the forward pass first left them."""
        self._recomputed = False
        """Whether a module was first seen within the backward pass, as under reentrant checkpointing."""
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor] | None, int]] = {}
        self._magnitudes: list[tuple[int, float]] = []
        self._statistics: list[Statistics] = []
        self._elements: dict[int, int] = {}
        self._trays: dict[tuple[torch.device, Any], _Tray] = {}

    def outputs(self, module: int, output: Any) -> list[torch.Tensor]:
        """Note what a module put out; the fp16 tensors in it that a gradient will come back to."""
        awaited = []
        for tensor in _tensors(output):
            if _counts(tensor) and self._is_new(tensor):
                if module not in self._order:
                    self._order[module] = None
                    self._recomputed |= torch._C._current_graph_task_id() != -1
                self._note(module, tensor)
                if tensor.dtype == torch.float16 and tensor.requires_grad and not tensor.is_leaf:
                    awaited.append(tensor)
        return awaited

    def loss(self, outputs: Any) -> None:
        """Note what `scale()` was given: a tensor, or a list or tuple of them."""
        for tensor in _tensors(outputs):
            if tensor.dtype in _DTYPES and tensor.numel():
                self._note(LOSS, tensor)

    def gradient(self, module: int, gradient: torch.Tensor) -> None:
        """Measure a gradient that has come back to what a module put out."""
        elements = local_elements(gradient)
        if not elements.numel():
            return
        self._elements[module] = self._elements.get(module, 0) + elements.numel()
        if is_host(elements):
            self._statistics.append(host.measure([elements], [module], self._sample, self._random))
        else:
            tray = self._tray(elements.device)
            tray.packed.append(self._probe.statistics([elements]))
            tray.packed_of.append(module)

    def gathered(self) -> Gathered:
        """All of it, with what is on devices on its way to the host. Nothing can be added after."""
        packed, magnitudes = [], []
        for (_, stream), tray in self._trays.items():
            # Behind the work that makes the values: the backward pass runs on the streams of the forward pass.
            with on(stream):
                if tray.packed:
                    packed.append((tray.packed_of, Readback(torch.cat(tray.packed))))
                if tray.magnitudes:
                    on_way = Readback(torch.stack(tray.magnitudes))
                    magnitudes.append((tray.magnitudes_of, on_way))
        return Gathered(
            modules=sorted(self._order) if self._recomputed else list(self._order),
            elements=self._elements,
            magnitudes=self._magnitudes,
            statistics=self._statistics,
            packed=packed,
            magnitudes_on_device=magnitudes,
        )

    def _is_new(self, tensor: torch.Tensor) -> bool:
        """Whether it is not what another module has put out, as when a container returns what its last child did."""
        seen = self._seen.get(id(tensor))
        version = tensor._version
        # A module's own parameter lives on by itself, and torch swaps none that has a weak reference.
        own = isinstance(tensor, torch.nn.Parameter)
        reference = None if own else weakref.ref(tensor)
        self._seen[id(tensor)] = (reference, version)
        if seen is None or seen[1] != version:
            return True
        known = tensor if seen[0] is None else seen[0]()
        return known is not tensor

    def _note(self, module: int, tensor: torch.Tensor) -> None:
        elements = local_elements(tensor)
        if not elements.numel():
            return
        low, high = torch.aminmax(elements)
        magnitude = torch.maximum(-low, high)
        if is_host(magnitude):
            self._magnitudes.append((module, magnitude.item()))
        else:
            tray = self._tray(magnitude.device)
            tray.magnitudes.append(magnitude.to(eager.widest(magnitude.device)))
            tray.magnitudes_of.append(module)

    def _tray(self, device: torch.device) -> _Tray:
        stream = current_stream(device) if is_asynchronous(device) else None
        return self._trays.setdefault((device, stream), _Tray())


@dataclass(slots=True)
class Gathered:
    """One iteration's sample of the activations, on the host or on its way there. Modules are places in the header."""

    modules: list[int]
    elements: dict[int, int]
    magnitudes: list[tuple[int, float]]
    statistics: list[Statistics]
    packed: list[tuple[list[int], Readback]]
    magnitudes_on_device: list[tuple[list[int], Readback]]

    def ready(self) -> bool:
        """Whether all values are on the host. Does not wait."""
        return all(each.ready() for _, each in (*self.packed, *self.magnitudes_on_device))

    def result(self) -> wire.Activations | None:
        """The record's part; None where no module put anything out. Waits for values that are not there yet."""
        if not self.modules:
            return None
        largest = self._largest()
        fetched = [eager.unpack(copy.result(), owners) for owners, copy in self.packed]
        statistics = Statistics.added(
            [Statistics.nothing(self.modules), *self.statistics, *fetched]
        )
        elements = [self.elements.get(module, 0) for module in self.modules]
        return wire.Activations(
            gradients=statistics.to_wire(),
            elements=np.array(elements, "<i8").tobytes(),
            forward=np.array([largest[module] for module in self.modules], "<f8").tobytes(),
            loss=largest.get(LOSS),
        )

    def _largest(self) -> dict[int, float]:
        largest: dict[int, float] = {}
        fetched = [
            (owner, value)
            for owners, copy in self.magnitudes_on_device
            for owner, value in zip(owners, copy.result().tolist(), strict=True)
        ]
        for owner, value in (*self.magnitudes, *fetched):
            held = largest.get(owner, 0.0)
            # NaN is the largest: it stays, and what is not less than it takes no other's place.
            largest[owner] = held if value <= held or math.isnan(held) else value
        return largest


def is_host(tensor: torch.Tensor) -> bool:
    """Whether values can be read without waiting for a device."""
    return tensor.is_cpu


def _tensors(output: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in what a module may return: a tensor, or tuples, lists and mappings of them."""
    if isinstance(output, torch.Tensor):
        yield output
    elif depth < _DEPTH_MAX and isinstance(output, (tuple, list, Mapping)):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(part, depth + 1)


def _counts(tensor: torch.Tensor) -> bool:
    """Whether an output is an activation: of a dtype that is measured, with values, and not a mask, say, in fp32."""
    return (
        tensor.dtype in _DTYPES
        and (tensor.requires_grad or tensor.dtype == torch.float16)
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and not (tensor.is_meta or tensor.is_inference())
        and not is_functorch_wrapped_tensor(tensor)
    )
