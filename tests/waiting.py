"""Waits for a condition. No test waits for a time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar


DEADLINE_S = 60.0
"""Ends a hang, for every wait in the tests. No fact depends on it: a busy machine may take most of it."""
POLL_S = 0.02
"""Between two looks, or three times as long as a look takes: who waits leaves the cores to who works."""

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str = "") -> T:
    """Return the first true value of ``condition``. Raises AssertionError, naming ``what``, at the deadline."""
    began = looked = time.monotonic()
    while not (value := condition()):
        now = time.monotonic()
        assert now < began + DEADLINE_S, f"waited {DEADLINE_S:.0f} s in vain {what or condition}"
        time.sleep(max(POLL_S, 3 * (now - looked)))
        looked = time.monotonic()
    return value
