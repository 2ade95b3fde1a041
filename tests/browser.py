"""Starts a Chromium under Playwright. Knows nothing of ampmon."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from playwright.sync_api import Browser, sync_playwright

from tools import CHROMIUM


FLAGS = (
    "--no-sandbox",  # Chromium refuses to run as root, as in containers, with it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-extensions",
    # All pages of a context share one process, so that a script is compiled once, not once a page:
    # to compile the library that draws costs more processor time than most tests do.
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A headless browser, with these flags besides the usual ones, which they override.

    It writes its caches and crash reports to a temporary folder instead of the home directory.
    While it runs, the thread counts as one of asyncio's: `asyncio.run` works again once it has ended.
    Raises FileNotFoundError, saying what to install, where there is none.
    """
    program = CHROMIUM.find()
    if program is None:
        raise FileNotFoundError(CHROMIUM.missing)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        sync_playwright() as playwright,
    ):
        places = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
        environment = {**os.environ, **dict.fromkeys(places, home)}
        browser = playwright.chromium.launch(
            executable_path=program, args=[*FLAGS, *flags], env=environment
        )
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
