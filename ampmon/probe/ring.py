"""Copies tensors between a device and the host without waiting, through pinned buffers that are reused.

Pinned memory is allocated once and kept: freeing it would request an event from the driver, which may break a CUDA
graph that is being captured. There are as many buffers as copies were ever in flight at once.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ampmon.probe.accelerator import current_stream, is_asynchronous, new_event, on, stream_id


_SMALLEST = 64
_VIEWS_MAX = 32


class Slot:
    """A pinned buffer, and the event after the newest copy into it or out of it."""

    __slots__ = ("_buffer", "_event", "_views")

    def __init__(self, size: int) -> None:
        # The device is explicit, because the user may have changed the default one. Nor may the buffer be an inference
        # tensor, which could not be written outside of that mode.
        with torch.inference_mode(False):
            self._buffer = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        self._event: Any = None
        self._views: dict[tuple[torch.dtype, torch.Size, int], torch.Tensor] = {}

    def copy(self, tensor: torch.Tensor, behind: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        """Enqueue a copy to the host and return the view of the buffer that it goes to.

        Tensors in ``behind`` follow the first one, and the view is then flat.
        """
        host, end = self.put(tensor), tensor.nbytes
        for each in behind:
            self.put(each, end)
            end += each.nbytes
        self.mark(tensor.device)
        return self.flat(tensor.dtype, end // tensor.itemsize) if behind else host

    def put(self, tensor: torch.Tensor, at: int = 0) -> torch.Tensor:
        """Enqueue a copy to byte ``at`` of the buffer. Return the view that it goes to. `mark` must follow."""
        return self._like(tensor, at).copy_(tensor, non_blocking=True)

    def flat(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        """The first elements of the buffer."""
        return self._view(dtype, torch.Size([count]))

    def send(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Enqueue a copy of a host tensor to a device and return the copy."""
        sent = self._like(tensor).copy_(tensor).to(device, non_blocking=True)
        self.mark(device)
        return sent

    def mark(self, device: torch.device) -> None:
        """Enqueue the event after which the copies so far have arrived."""
        if self._event is None:
            self._event = new_event(device)
        self._event.record(current_stream(device))

    def _like(self, tensor: torch.Tensor, at: int = 0) -> torch.Tensor:
        return self._view(tensor.dtype, tensor.shape, at)

    def _view(self, dtype: torch.dtype, shape: torch.Size, at: int = 0) -> torch.Tensor:
        # Making a view takes about 6 us.
        view = self._views.get((dtype, shape, at))
        if view is None:
            if len(self._views) == _VIEWS_MAX:
                self._views.clear()
            end = at + dtype.itemsize * shape.numel()
            with torch.inference_mode(False):
                view = self._buffer[at:end].view(dtype).view(shape)
            self._views[dtype, shape, at] = view
        return view

    def filled(self) -> bool:
        """Return whether the newest copy has arrived. Does not wait."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Block until the newest copy has arrived."""
        self._event.synchronize()


class Ring:
    """The free slots. Threads take them and put them back, each in one operation.

    There is no lock, because a fork could leave it locked forever.
    """

    def __init__(self, slot: Callable[[int], Slot] = Slot) -> None:
        self._slot = slot
        self._free: defaultdict[tuple[torch.device, int], list[Slot]] = defaultdict(list)
        self._dropped: deque[tuple[tuple[torch.device, int], Slot]] = deque()
        """Slots with copies that nobody waits for, which may still be in flight."""

    def take(self, key: tuple[torch.device, int]) -> Slot:
        """Return a slot for copies from or to a device, with a size in bytes."""
        # Each one once, because those still in flight are put back at the end.
        for _ in range(len(self._dropped)):
            try:
                dropped, slot = self._dropped.popleft()
            except IndexError:  # other threads took the rest
                break
            (self.put_back if slot.filled() else self.drop)(dropped, slot)
        try:
            return self._free[key].pop()
        except IndexError:
            return self._slot(key[1])

    def put_back(self, key: tuple[torch.device, int], slot: Slot) -> None:
        self._free[key].append(slot)

    def drop(self, key: tuple[torch.device, int], slot: Slot) -> None:
        """Put back a slot whose copy may not have arrived. Does not query the device."""
        self._dropped.append((key, slot))

    def upload(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a copy of a host tensor on an accelerator, in the order of its current stream. Does not wait."""
        key = (device, _size_class(tensor.nbytes))
        slot = self.take(key)
        sent = slot.send(tensor, device)
        # Only after `send`: before it, other threads would query the event of the previous copy.
        self.drop(key, slot)
        return sent


_ring = Ring()
_never_free: list[Slot] = []


class Readback:
    """A copy of a tensor on its way to the host.

    On a CPU it is complete at once. On an accelerator the copy goes into pinned memory after the work that makes the
    values, with an event after it. `ready` never waits. On a device without events, `result` waits.

    ``behind`` are more tensors of the same device and dtype, which arrive flat behind the first. Joining them on the
    device would take a kernel, whose first use stops a GPU's training for milliseconds.

    Once `ready` has returned True, the event is not queried again. A query from another thread would break a CUDA
    graph that the training thread is capturing.
    """

    __slots__ = ("_arrived", "_key", "_ring", "_slot", "_tensor", "_values")

    def __init__(
        self,
        tensor: torch.Tensor,
        ring: Ring | None = None,
        *,
        behind: Sequence[torch.Tensor] = (),
    ) -> None:
        if ring is None and is_asynchronous(tensor.device):
            ring = _ring
        self._ring = ring
        self._slot: Slot | None = None
        self._values: list[float] | None = None
        # Without a buffer, copy the tensor now, because training may overwrite it before it is read.
        if ring is None:
            parts = [each.reshape(-1) for each in (tensor, *behind)]
            tensor = torch.cat(parts) if behind else tensor.clone()
        self._tensor = tensor
        self._arrived = ring is None
        if ring is not None:
            size = tensor.nbytes + sum(each.nbytes for each in behind)
            self._key = (tensor.device, _size_class(size))
            self._slot = ring.take(self._key)
            self._tensor = self._slot.copy(tensor, behind)

    def __del__(self) -> None:
        # The garbage collector may run this at any time, and memory must not be freed while a graph is captured.
        if self._slot is not None and self._ring is not None:
            self._ring.drop(self._key, self._slot)

    def ready(self) -> bool:
        """Return whether the values are on the host. Does not wait."""
        if self._slot is not None and not self._arrived:
            self._arrived = self._slot.filled()
        return self._arrived

    def result(self) -> torch.Tensor:
        """Return the tensor on the host, which the caller owns. Waits for the device if `ready` is False."""
        slot = self._arrive()
        if slot is None or self._ring is None:
            return self._tensor.cpu()
        # Copied out, because the next copy overwrites the slot.
        self._tensor = self._tensor.clone()
        self._ring.put_back(self._key, slot)
        return self._tensor

    def values(self) -> list[float]:
        """Return the elements of the tensors as numbers, in place of `result`, and faster. Waits as that does."""
        if self._values is None:
            slot = self._arrive()
            self._values = self._read()
            if slot is not None and self._ring is not None:
                self._ring.put_back(self._key, slot)
        return self._values

    def _read(self) -> list[float]:
        return self._tensor.reshape(-1).tolist()

    def _arrive(self) -> Slot | None:
        """Wait for the copy, and give up the slot that it is in, if it is still in one."""
        # At once, so that `__del__` does not put the slot back a second time.
        slot, self._slot = self._slot, None
        if slot is not None and not (self._arrived or slot.filled()):
            slot.wait()
        self._arrived = True
        return slot


class JoinedReadback(Readback):
    """Copies of 32-bit tensors with one element, added one by one, on their way to the host. They arrive together.

    It takes as many as there is `room` for, on the stream that is current at construction. Needs a device with events.
    """

    __slots__ = ("_count", "_device", "_stream", "_stream_id", "bits", "ended")
    bits: list[int]
    """The elements' bits, once `values` has returned: an int32 tensor may be among those added."""

    def __init__(self, device: torch.device, ring: Ring | None = None) -> None:
        self._ring = ring or _ring
        self._key = (device, _SMALLEST)
        self._slot: Slot | None = None  # for `__del__`, if `take` raises
        self._values: list[float] | None = None
        self._arrived = self.ended = False
        self._count, self._device = 0, device
        self._slot = self._ring.take(self._key)
        self._stream, self._stream_id = current_stream(device), stream_id(device)

    @property
    def room(self) -> int:
        """How many more tensors it takes. None after `end`, and none while another stream is the current one."""
        here = not self.ended and stream_id(self._device) == self._stream_id
        return _SMALLEST // 4 - self._count if here else 0

    def add(self, tensors: Sequence[torch.Tensor]) -> ReadbackPart:
        """Enqueue copies of tensors, and return what reads them."""
        first, self._count = self._count, self._put(tensors)
        return ReadbackPart(self, slice(first, self._count))

    def _put(self, tensors: Sequence[torch.Tensor]) -> int:
        """Enqueue copies behind those before, and return how many there are then. May be repeated after an error."""
        assert self._slot is not None
        for place, each in enumerate(tensors, self._count):
            self._slot.put(each, 4 * place)
        return self._count + len(tensors)

    def end(self, *last: torch.Tensor) -> None:
        """Enqueue copies of the ``last`` tensors, and the event after which all have arrived."""
        assert self._slot is not None
        with on(self._stream if stream_id(self._device) != self._stream_id else None):
            count = self._put(last)
            self._slot.mark(self._device)
        self._tensor = self._slot.flat(torch.float32, count)
        self.ended = True

    def __del__(self) -> None:
        if self.ended:
            super().__del__()
        elif self._slot is not None:
            _never_free.append(self._slot)  # no event says when its copies have arrived

    def ready(self) -> bool:
        return self.ended and super().ready()

    def _read(self) -> list[float]:
        # Not from the numbers: small integers are subnormal floats, which torch.set_flush_denormal turns into zero.
        self.bits = self._tensor.view(torch.int32).tolist()
        return super()._read()


@dataclass(slots=True)
class ReadbackPart:
    """Some elements of an fp32 `Readback` that others read too."""

    _whole: Readback
    _elements: slice

    def ready(self) -> bool:
        return self._whole.ready()

    def values(self) -> list[float]:
        """Return the elements as numbers. Waits for the device if `ready` is False."""
        return self._whole.values()[self._elements]

    def result(self) -> torch.Tensor:
        """Return the elements as fp32, as `values` does."""
        return torch.tensor(self.values(), dtype=torch.float32, device="cpu")


_uploads = Ring()
"""Apart from `_ring`, so that a readback queries no event of an upload."""


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy of a host tensor on a device, without waiting. On a CPU this is the tensor itself."""
    return _uploads.upload(tensor, device) if is_asynchronous(device) else tensor.to(device)


def _size_class(size: int) -> int:
    """Round ``size`` bytes up to a power of two, so that freezing parameters one by one yields only a few sizes."""
    return max(1 << (size - 1).bit_length(), _SMALLEST)
