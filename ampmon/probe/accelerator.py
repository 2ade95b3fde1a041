"""Streams and events of any device that works on its own time. Knows not what they are used for.

From torch 2.6 on `torch.accelerator` has them for every backend. Before, only CUDA has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


_GENERIC = hasattr(torch, "accelerator")


@cache
def is_asynchronous(device: torch.device) -> bool:
    """Whether copies from the device can be left to arrive: it has events, and pinned memory on the host."""
    if device.type == "cuda":
        return True
    if device.type in ("cpu", "meta") or not _GENERIC:
        return False
    present = torch.accelerator.current_accelerator()
    if present is None or present.type != device.type:
        return False
    try:
        new_event(device).record(current_stream(device))
        torch.empty(1, device="cpu", pin_memory=True)
    except Exception:
        return False
    return True


def current_stream(device: torch.device) -> Any:
    """The stream that work on the device is enqueued to now. Its ``stream_id`` is unique."""
    return (
        torch.accelerator.current_stream(device) if _GENERIC else torch.cuda.current_stream(device)
    )


def stream_id(device: torch.device) -> int:
    """The id of its current stream; 0 where it has none."""
    return int(current_stream(device).stream_id) if is_asynchronous(device) else 0


def new_event(device: torch.device, *, timed: bool = False) -> Any:
    """An event to record on a stream of the device."""
    if _GENERIC:
        return torch.Event(device, enable_timing=timed)
    return torch.cuda.Event(enable_timing=timed)


@contextmanager
def on(stream: Any) -> Iterator[None]:
    """Enqueue work to this stream within the block. None is a device that has none: nothing changes."""
    if stream is None:
        yield
    elif not _GENERIC:
        with torch.cuda.stream(stream):
            yield
    else:
        # To set a stream makes its device the current one too.
        before = torch.accelerator.current_stream(), torch.accelerator.current_stream(stream.device)
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            for each in reversed(before):
                torch.accelerator.set_stream(each)
