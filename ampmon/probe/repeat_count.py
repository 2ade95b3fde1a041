"""Repeats a device's count of inf and NaN in an optimizer's gradients, without preparing it again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ampmon.probe.accelerator import stream_id
from ampmon.probe.device import Asking
from ampmon.probe.gradients import addresses, plain_gradients
from ampmon.probe.ring import Readback


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

    def ask(self, optimizer: torch.optim.Optimizer, found_inf: torch.Tensor) -> Readback | None:
        """Enqueue the counts of inf and NaN of `DeviceProbe.culprits`; None if a gradient or the stream has changed."""
        if self._addresses is None or stream_id(self.device) != self._stream:
            return None
        return self._asking(found_inf) if addresses(optimizer) == self._addresses else None
