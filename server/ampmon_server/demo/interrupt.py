"""Ctrl-C as a wish, not an exception: what runs ends its current update, and what is recorded is delivered."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While it is entered, Ctrl-C and SIGTERM set it; a second one interrupts at once. For the main thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._wished)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        """Whether somebody wants it to end."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, at most so long, for somebody to want it to end; returns whether they do."""
        return self._event.wait(seconds)

    def _wished(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()
