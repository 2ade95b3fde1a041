"""Copies from a device to the host that nobody waits for, in buffers that are used again. Knows not what they hold.

Pinned memory is allocated once and kept: to give it back would ask the driver for an event, which may break a CUDA
graph that is being captured. There are as many buffers as copies were ever on their way together.
"""

from __future__ import annotations

from collections import defaultdict

import torch


_SMALLEST = 64


class _Slot:
    """A pinned buffer, and the event behind the newest copy into it."""

    __slots__ = ("buffer", "event")

    def __init__(self, size: int) -> None:
        self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.event = torch.cuda.Event()


_free: defaultdict[tuple[torch.device, int], list[_Slot]] = defaultdict(list)
"""Slots that no copy holds, by device and size; taken and put back by several threads, each in one operation."""


class Readback:
    """A copy of a tensor on its way to the host.

    On a CPU it is there at once. On CUDA the copy goes into pinned memory behind the work that makes the values, with
    an event after it; asking `ready` never waits. Other devices have no such pair, and are read when asked for.
    """

    __slots__ = ("_key", "_slot", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._slot: _Slot | None = None
        self._tensor = tensor
        if tensor.device.type == "cuda":
            self._key = (tensor.device, _size_class(tensor.nbytes))
            self._slot = _take(*self._key)
            self._tensor = self._slot.buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            self._tensor.copy_(tensor, non_blocking=True)
            self._slot.event.record(torch.cuda.current_stream(tensor.device))

    def ready(self) -> bool:
        """Whether the values are on the host. Does not wait."""
        return self._slot is None or self._slot.event.query()

    def result(self) -> torch.Tensor:
        """The tensor on the host, the caller's own. Waits for the device where `ready` is False."""
        slot, self._slot = self._slot, None
        if slot is None:
            return self._tensor.cpu()
        slot.event.synchronize()
        self._tensor = self._tensor.clone()
        _free[self._key].append(slot)
        return self._tensor


def _take(device: torch.device, size: int) -> _Slot:
    try:
        return _free[device, size].pop()
    except IndexError:
        return _Slot(size)


def _size_class(size: int) -> int:
    """The least power of two that holds so many bytes: a model's parameters may be frozen and thawed one by one."""
    return max(1 << (size - 1).bit_length(), _SMALLEST)
