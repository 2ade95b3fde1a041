"""Runs a Chromium with a cold cache, signed in to a server. Independent of the page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import urllib3
from playwright.sync_api import Page

from tests.browser import chromium


WINDOW = (1440, 1000)
ROUNDS = 50
"""Readings of the page's clock. The fastest one counts."""


@contextmanager
def reading(url: str, token: str | None = None, *, height: int = WINDOW[1]) -> Iterator[Page]:
    """Open a browser window with nothing cached. With a ``token``, sign in to the server at ``url``."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": WINDOW[0], "height": height})
        if token:
            headers = {"Authorization": f"Bearer {token}"}
            made = urllib3.request("POST", f"{url}/api/v1/login-links", headers=headers)
            page.context.request.get(made.json()["url"], max_redirects=0)
        yield page


def clock(page: Page) -> Callable[[float], float]:
    """Return a function from the page's `performance.now()` to `time.perf_counter`, both in ms, to about 1 ms."""
    best, offset = float("inf"), 0.0
    for _ in range(ROUNDS):
        before = time.perf_counter()
        theirs = page.evaluate("performance.now()")
        after = time.perf_counter()
        if after - before < best:
            best, offset = after - before, 500 * (before + after) - theirs
    return lambda at: at + offset


def until(page: Page, what: str, holds: Callable[[], Any], within_s: float = 120.0) -> Any:
    """Wait until ``holds`` returns a true value, and return it. Raises TimeoutError."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if value := holds():
            return value
        page.wait_for_timeout(50)
    raise TimeoutError(f"waited in vain for {what}")
