"""Finds a Chromium, or installs one, and starts it under Playwright. Knows nothing of ampmon.

As a script it makes sure that there is a browser: on the path, else Debian's package where we are root, else the build
that Playwright fetches. Where none of it works it says what to install.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Playwright, sync_playwright

import debian


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",  # Chromium refuses to run as root, as in containers, with it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
)
HOW = "The browser tests need Chromium: on Debian, apt-get install chromium; elsewhere, playwright install chromium"


def on_path() -> Path | None:
    """The Chromium on the path."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return Path(found) if found else None


def installed(playwright: Playwright) -> Path | None:
    """The Chromium on the path, else the build that Playwright fetched before."""
    fetched = Path(playwright.chromium.executable_path)
    return on_path() or (fetched if fetched.exists() else None)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A headless browser, with these flags besides the usual ones.

    While it runs, the thread counts as one of asyncio's: `asyncio.run` works again once it has ended.
    Raises FileNotFoundError, saying what to install, where there is none.
    """
    with sync_playwright() as playwright:
        program = installed(playwright)
        if program is None:
            raise FileNotFoundError(HOW)
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


def ensure() -> bool:
    """Whether there is a browser to test with, installed if need be."""
    if on_path() is None:
        debian.install("chromium")
    if on_path() is not None:
        return True
    fetch = [sys.executable, "-m", "playwright", "install", "chromium"]
    return subprocess.run(fetch, stdin=subprocess.DEVNULL, check=False, stdout=2).returncode == 0


if __name__ == "__main__":
    sys.exit(None if ensure() else HOW)
