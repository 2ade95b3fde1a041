"""Layout faults of the page, element by element."""

from __future__ import annotations

import time
from pathlib import Path

from playwright.sync_api import Page

from waiting import DEADLINE_S


_FAULTS = Path(__file__).with_name("layout.js").read_text()
_POLL_MS = 100


def faults(page: Page, patience_s: float = DEADLINE_S) -> list[str]:
    """Elements that stick out of the window sideways, are cut off unreadably, or lie outside their chart.

    Faults that disappear within ``patience_s`` do not count: a chart is redrawn after its window changes width.
    """
    end = time.monotonic() + patience_s
    while (found := list(page.evaluate(_FAULTS))) and time.monotonic() < end:
        page.wait_for_timeout(_POLL_MS)
    return found
