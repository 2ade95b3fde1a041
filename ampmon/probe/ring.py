"""Copies from a device to the host that nobody waits for. Knows nothing of what they hold."""

from __future__ import annotations

import torch


class Readback:
    """A copy of a tensor on its way to the host.

    On a CPU it is there at once. On CUDA the copy goes into pinned memory behind the work that makes the values, with
    an event after it; asking `ready` never waits. Other devices have no such pair, and are read when asked for.
    """

    __slots__ = ("_event", "_host")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._host = torch.empty(
                tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True
            )
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))
        else:
            self._host = tensor

    def ready(self) -> bool:
        """Whether the values are on the host. Does not wait."""
        return self._event is None or self._event.query()

    def result(self) -> torch.Tensor:
        """The tensor on the host. Waits for the device where `ready` is False."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.cpu()
