"""Turns Ctrl-C into a flag, so that the current update is finished and its records are delivered."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While entered, the first Ctrl-C or SIGTERM sets it, and a second one raises KeyboardInterrupt.

    For the main thread only.
    """

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
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for an interrupt. Return whether there was one."""
        return self._event.wait(seconds)

    def _wished(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self._event.set()
