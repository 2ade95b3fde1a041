"""Gradients of an optimizer that a device was asked about, to be asked about again without a walk over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ampmon.probe.accelerator import stream_id
from ampmon.probe.device import Asking
from ampmon.probe.gradients import addresses, plain_gradients
from ampmon.probe.ring import Readback


class StandingGradients:
    """All gradients of an optimizer, of one device and dtype, as they are now. Keeps none of them alive.

    Their parameters have the places ``indices`` in the header.
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
        """Counts of inf and NaN, as `DeviceProbe.culprits` has them; None where something has moved since."""
        if self._addresses is None or stream_id(self.device) != self._stream:
            return None
        return self._asking(found_inf) if addresses(optimizer) == self._addresses else None
