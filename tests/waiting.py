"""Waits for a condition. No test waits for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar


DEADLINE_S = 60.0
"""Ends a hang, for every wait in the tests. No test depends on its length: a busy machine may need most of it."""
POLL_S = 0.02
"""The pause between two checks. A slow check pauses three times its own time, to leave the cores to other work."""

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str = "", within_s: float = DEADLINE_S) -> T:
    """Return the first true value of ``condition``. Raises AssertionError, naming ``what``, at the deadline."""
    began = looked = time.monotonic()
    while not (value := condition()):
        now = time.monotonic()
        assert now < began + within_s, f"waited {within_s:.0f} s in vain {what or condition}"
        time.sleep(max(POLL_S, 3 * (now - looked)))
        looked = time.monotonic()
    return value
