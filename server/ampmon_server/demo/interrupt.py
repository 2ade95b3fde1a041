"""Turns Ctrl-C into a flag, so that the current update is finished and its records are delivered."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt(threading.Event):
    """While entered, the first Ctrl-C or SIGTERM sets it, and a second one raises KeyboardInterrupt.

    For the main thread only.
    """

    def __enter__(self) -> Interrupt:
        self._before: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._wished)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _wished(self, number: int, frame: FrameType | None) -> None:
        if self.is_set():
            raise KeyboardInterrupt
        self.set()
