"""Waits for a condition. No test waits for a time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar


DEADLINE_S = 60.0
"""Ends a hang, for every wait in the tests. No fact depends on it: a busy machine may take most of it."""
POLL_S = 0.02

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str = "") -> T:
    """Return the first true value of ``condition``. Raises AssertionError, naming ``what``, at the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {DEADLINE_S:.0f} s in vain {what or condition}"
        time.sleep(POLL_S)
    return value
