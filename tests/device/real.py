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
"""Two seconds or so."""


class Device:
    """Controls the current CUDA device: it cannot be held, but kept busy, and torch warns of what it sees of waits."""

    _caught: Any = None
    _warnings: list[warnings.WarningMessage] = []

    def reset(self) -> None:
        """Be done with all work, and count no waits."""
        torch.cuda.set_sync_debug_mode("default")
        if self._caught is not None:
            self._caught.__exit__(None, None, None)
            self._caught = None
        torch.cuda.synchronize()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The device is busy for seconds: who would wait gets an error, and who takes that long has waited."""
        torch.cuda.synchronize()
        torch.cuda._sleep(PAUSE_CYCLES)
        over = torch.cuda.Event()
        over.record()
        with self.strict():
            yield
        assert not over.query(), "the host waited for the device, or took as long as it was busy"

    @contextmanager
    def strict(self) -> Iterator[None]:
        """Whoever would wait gets an error, as far as torch sees waits."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def jitter(self, us: int) -> None:
        """A GPU has delays of its own."""

    def forget(self) -> None:
        """Count waits anew. Within a test only: pytest catches warnings by itself in each of its parts."""
        self.reset()
        self._caught = warnings.catch_warnings(record=True)
        self._warnings = self._caught.__enter__()
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")

    def waits(self) -> list[str]:
        """A word for each wait since `forget` that torch saw."""
        told = [str(each.message) for each in self._warnings]
        return ["a synchronizing operation" for each in told if "called a synchronizing" in each]

    def violations(self) -> list[str]:
        """CUDA raises what breaks a capture."""
        return []

    @contextmanager
    def capture(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Record what is enqueued into a graph, and run none of it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            yield graph


@cache
def device() -> Device:
    """The device."""
    return Device()
