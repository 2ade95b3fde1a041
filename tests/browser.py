"""Starts a Chromium under Playwright. Knows nothing of ampmon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from playwright.sync_api import Browser, sync_playwright

from tools import CHROMIUM


FLAGS = (
    "--no-sandbox",  # Chromium refuses to run as root, as in containers, with it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A headless browser, with these flags besides the usual ones.

    While it runs, the thread counts as one of asyncio's: `asyncio.run` works again once it has ended.
    Raises FileNotFoundError, saying what to install, where there is none.
    """
    program = CHROMIUM.find()
    if program is None:
        raise FileNotFoundError(CHROMIUM.missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


Lent = Callable[[], AbstractContextManager[Browser]]


@contextmanager
def kept() -> Iterator[Lent]:
    """A browser for a whole session, lent for a while at a time: in between, `asyncio.run` works."""
    with chromium() as browser:
        loop = asyncio.get_running_loop()

        @contextmanager
        def lent() -> Iterator[Browser]:
            asyncio._set_running_loop(loop)
            try:
                yield browser
            finally:
                asyncio._set_running_loop(None)

        asyncio._set_running_loop(None)
        try:
            yield lent
        finally:
            asyncio._set_running_loop(loop)
