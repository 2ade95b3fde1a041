"""Streams, events and graph captures of any asynchronous device.

From torch 2.6 on, `torch.accelerator` provides them for every backend. Before that, only CUDA has them.
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
    """Return whether the device supports asynchronous copies: it has events, and the host has pinned memory for it."""
    if device.type == "cuda":
        return True
    if device.type in ("cpu", "meta") or not _GENERIC:
        return False
    present = torch.accelerator.current_accelerator()
    if present is None or present.type != device.type:
        return False
    try:
        new_event(device).record(_stream(device))
        torch.empty(1, device="cpu", pin_memory=True)
    except Exception:
        return False
    return True


def _stream(device: torch.device) -> Any:
    return (torch.accelerator if _GENERIC else torch.cuda).current_stream(device)


def current_stream(device: torch.device) -> Any:
    """Return the stream that receives the device's work now, or None for a device without streams."""
    return _stream(device) if is_asynchronous(device) else None


def stream_id(device: torch.device) -> int:
    """Return the unique id of the device's current stream, or 0 for a device without streams."""
    if device.type == "cuda":  # without a stream object it takes a tenth of the time
        return int(torch._C._cuda_getCurrentRawStream(device.index))
    stream = current_stream(device)
    return 0 if stream is None else int(stream.stream_id)


def new_event(device: torch.device, *, timed: bool = False) -> Any:
    """Return an event to record on a stream of the device. Pass ``timed`` to measure elapsed time with it."""
    if _GENERIC:
        return torch.Event(device, enable_timing=timed)
    return torch.cuda.Event(enable_timing=timed)


@contextmanager
def on(stream: Any) -> Iterator[None]:
    """Enqueue the block's work on this stream. None, for a device without streams, changes nothing."""
    if stream is None:
        yield
    elif not _GENERIC:
        with torch.cuda.stream(stream):
            yield
    else:
        # `set_stream` also makes the stream's device current, so restore the current stream of both devices.
        before = torch.accelerator.current_stream(), torch.accelerator.current_stream(stream.device)
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            for each in reversed(before):
                torch.accelerator.set_stream(each)


def capturing() -> bool:
    """Return whether the current stream is being captured into a graph. Neither syncs nor waits.

    During a capture nothing can be measured: enqueued work becomes part of the graph, an event query breaks the
    capture, and there are no values to read. False if no device can capture.
    """
    for each in _capturing_modules():  # noqa: SIM110 - it is asked in every update, and any() takes twice as long
        if each.is_initialized() and each.is_current_stream_capturing():
            return True
    return False


@cache
def _capturing_modules() -> tuple[Any, ...]:
    """torch.cuda, and the module of another accelerator if that can capture."""
    present = torch.accelerator.current_accelerator() if _GENERIC else None
    if present is None or present.type == "cuda":
        return (torch.cuda,)
    module = torch.get_device_module(present)
    asked = ("is_initialized", "is_current_stream_capturing")
    return (torch.cuda, module) if all(hasattr(module, each) for each in asked) else (torch.cuda,)
