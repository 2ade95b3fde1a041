"""`ampmon demo`: a real fp16 training, small enough for any machine, with the page that shows it.

Importing this module does not load torch. Running the demo does.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import threading
from types import FrameType
from typing import Any

from ampmon.errors import ConfigurationError
from ampmon.system.installing import install


class Interrupt(threading.Event):
    """Turns Ctrl-C into a flag, so that the current update is finished and its records are delivered.

    While entered, the first Ctrl-C or SIGTERM sets it, and a second one raises KeyboardInterrupt. For the main thread
    only.
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


def main(arguments: argparse.Namespace) -> int:
    """Run the demo until it is done or interrupted. Return the exit code. Raises AmpmonError if it cannot run."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError(f"this trains a model, which needs PyTorch: {install('torch')}")
    # Before torch is loaded: that takes seconds, in which the user may press Ctrl-C.
    with Interrupt() as interrupt:
        from ampmon_server.demo import session

        return session.run(arguments, interrupt)
