"""What is wrong with how the page is laid out, told element by element. Knows no view."""

from __future__ import annotations

import time
from pathlib import Path

from playwright.sync_api import Page

from waiting import DEADLINE_S


_FAULTS = Path(__file__).with_name("layout.js").read_text()
_POLL_MS = 100


def faults(page: Page, patience_s: float = DEADLINE_S) -> list[str]:
    """What sticks out of the window sideways, is cut off with no way to read it, or lies outside of its chart.

    What passes within ``patience_s`` is none: a chart is drawn anew after its window has another width.
    """
    end = time.monotonic() + patience_s
    while (found := list(page.evaluate(_FAULTS))) and time.monotonic() < end:
        page.wait_for_timeout(_POLL_MS)
    return found
