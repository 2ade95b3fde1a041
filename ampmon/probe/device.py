"""Measures and searches gradients on asynchronous devices: with Triton kernels where they run, else in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import torch

from ampmon.probe import eager
from ampmon.probe.accelerator import current_stream, on, stream_id
from ampmon.probe.gpu import kernels
from ampmon.probe.gpu.loading import NotReady
from ampmon.probe.gpu.table import Unsupported
from ampmon.probe.gradients import addresses, plain_gradients
from ampmon.probe.ring import Readback


T = TypeVar("T")

_type_of = cache(attrgetter("type"))
"""The type of a device, which torch takes half a microsecond to return. Every update asks."""


@dataclass(slots=True)
class DeviceCounts:
    """Counts of inf and NaN that stay on the device until somebody asks for them, which mostly nobody does."""

    _counts: torch.Tensor
    _stream: Any
    _copy: Readback | None = None

    def ready(self) -> bool:
        """Return whether the counts are on the host, and start the copy with the first call. Does not wait."""
        return self._fetched().ready()

    def result(self) -> torch.Tensor:
        """Return the counts, int64 [n, 2]. Waits until they are on the host."""
        return self._fetched().result()

    def _fetched(self) -> Readback:
        if self._copy is None:
            # On the stream that makes the counts: a copy on another could overtake them.
            with on(self._stream):
                self._copy = Readback(self._counts)
        return self._copy


Asking: TypeAlias = Callable[[torch.Tensor], DeviceCounts | None]


class DeviceProbe:
    """Enqueues measurements and the copies of counts to the host, without waiting. Keeps no gradient alive.

    Nothing is measured while kernels compile: plain torch's first use of its operators would stop training for a
    quarter of a second. If a kernel fails to compile or launch, that is reported once, and plain torch measures from
    then on. If only memory was short, the next call tries the kernels again.
    """

    def __init__(self, report: Callable[[str, Exception], None]) -> None:
        self._report = report
        self._kernels = kernels.Cache()
        self._usable = True

    def takes(self, device: torch.device) -> bool:
        """Return whether gradients on this device are measured here: on any but a CPU, and on a CPU that `fuses`."""
        return _type_of(device) != "cpu" or self.fuses(device)

    def fuses(self, device: torch.device) -> bool:
        """Return whether kernels run on this device. They measure gradients while they unscale them."""
        return self._usable and kernels.supported(device)

    def statistics(
        self, gradients: Sequence[torch.Tensor], ready: Callable[[], None] = kernels.nothing
    ) -> torch.Tensor:
        """Return statistics of n gradients of one device and dtype, packed as by `eager.launch`.

        They are int64 [n, WIDTH] on that device. Here and in `unscale`, ``ready`` is called once a kernel is prepared,
        before it is enqueued. Raises `NotReady`.
        """
        packed = None
        if self.fuses(gradients[0].device):
            packed = self._tried(self._kernels.statistics, gradients, ready)
        return eager.launch(gradients) if packed is None else packed

    def unscale(
        self,
        gradients: Sequence[torch.Tensor],
        found_inf: torch.Tensor,
        inv_scale: torch.Tensor,
        ready: Callable[[], None],
    ) -> torch.Tensor | None:
        """Unscale n fp32 or fp16 gradients of one device in place and measure their scaled values.

        The gradients end as torch leaves them, except NaN payloads. ``found_inf`` and ``inv_scale`` are fp32 with one
        element, on that device. Returns the statistics there, packed as int64 [n, WIDTH]. Returns None, with the
        gradients untouched, if the kernels fail.
        """
        try:
            return self._tried(self._kernels.unscale, gradients, found_inf, inv_scale, ready)
        except NotReady:
            return None

    def culprits(self, gradients: Sequence[torch.Tensor]) -> Asking | None:
        """Return a function that enqueues counts of the inf and NaN elements of n gradients.

        It takes a found_inf on the same device, and all counts are 0 if that is 0. It can be called again on this
        stream while no gradient moves. Returns None if no kernel runs; the function returns None if its kernel fails.
        Both raise `NotReady`.
        """
        if not self.fuses(gradients[0].device):
            return None
        if (count := self._tried(self._kernels.counter, gradients)) is None:
            return None
        stream = current_stream(gradients[0].device)
        return partial(self._tried, lambda found_inf: DeviceCounts(count(found_inf), stream))

    def _tried(self, kernel: Callable[..., T], *arguments: Any) -> T | None:
        """Return the kernel's result, or None if it fails or does not support the gradients. Raises `NotReady`."""
        try:
            return kernel(*arguments)
        except NotReady:
            raise
        except Unsupported:
            return None
        except Exception as error:
            self._report("the Triton kernels", error)
            # torch, CUDA and Triton each raise their own class if the device is out of memory.
            if "out of memory" not in str(error):
                self._usable = False
            return None


class RepeatableCount:
    """All gradients of an optimizer, of one device and dtype, at their current addresses. Keeps none of them alive.

    ``indices`` are the places of their parameters in the header.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        tensors: Sequence[torch.Tensor],
        indices: list[int],
        asking: Asking,
    ) -> None:
        first = tensors[0]
        held = plain_gradients(optimizer, {first.dtype}) or ()
        is_plain = len(held) == len(tensors) and all(map(torch.Tensor.is_contiguous, tensors))
        self._addresses = addresses(optimizer) if is_plain else None
        self._stream = stream_id(first.device)
        self._asking = asking
        self.device = first.device
        self.indices = indices

    def ask(self, optimizer: torch.optim.Optimizer, found_inf: torch.Tensor) -> DeviceCounts | None:
        """Enqueue the counts of inf and NaN of `DeviceProbe.culprits`; None if a gradient or the stream has changed."""
        if self._addresses is None or stream_id(self.device) != self._stream:
            return None
        return self._asking(found_inf) if addresses(optimizer) == self._addresses else None
