"""Starts a Chromium under Playwright, independently of ampmon."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from playwright.sync_api import Browser, sync_playwright

from tools import CHROMIUM


FLAGS = (
    "--no-sandbox",  # with the sandbox, Chromium refuses to run as root, as in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-extensions",
    # All pages of a context share one process, so a script is compiled once and not once per page:
    # compiling the chart library costs more processor time than most tests.
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A headless browser with these flags, which override the defaults.

    Caches and crash reports go to a temporary folder instead of the home directory.
    While it runs, the thread has a running asyncio loop, so `asyncio.run` fails until the browser ends.
    Raises FileNotFoundError, naming what to install, if there is no Chromium.
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
    """A browser for the whole session, lent for one block at a time. In between, `asyncio.run` works."""
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
