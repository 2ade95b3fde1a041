"""The controls of the emulated device, as far as a CUDA device has them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


NAME = "cuda"
PAUSE_CYCLES = 4_000_000_000
"""About two seconds."""


class Device:
    """Controls the current CUDA device. It cannot be paused, only kept busy; torch reports the waits that it sees."""

    _caught: Any = None
    _warnings: list[warnings.WarningMessage] = []

    def reset(self) -> None:
        """Finish all work and stop counting waits."""
        torch.cuda.set_sync_debug_mode("default")
        if self._caught is not None:
            self._caught.__exit__(None, None, None)
            self._caught = None
        torch.cuda.synchronize()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the device busy for seconds. Waiting for it raises, and so does taking that long."""
        torch.cuda.synchronize()
        torch.cuda._sleep(PAUSE_CYCLES)
        over = torch.cuda.Event()
        over.record()
        with self.strict():
            yield
        assert not over.query(), "the host waited for the device, or took as long as it was busy"

    @contextmanager
    def strict(self) -> Iterator[None]:
        """Raise on every wait that torch sees."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def jitter(self, us: int) -> None:
        """Do nothing: a GPU has delays of its own."""

    def forget(self) -> None:
        """Count waits anew. Only within a test, because pytest catches warnings separately in each of its phases."""
        self.reset()
        self._caught = warnings.catch_warnings(record=True)
        self._warnings = self._caught.__enter__()
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")

    def waits(self) -> list[str]:
        """Return an entry for each wait since `forget` that torch saw."""
        messages = [str(each.message) for each in self._warnings]
        return [
            "a synchronizing operation" for each in messages if "called a synchronizing" in each
        ]

    def violations(self) -> list[str]:
        """Return nothing, because CUDA raises on what breaks a capture."""
        return []

    @contextmanager
    def capture(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture what is enqueued into a graph, and run none of it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            yield graph


@cache
def device() -> Device:
    return Device()
