"""Finds a Chromium and its driver, or installs them, and starts them for a test. Knows nothing of ampmon.

As a script it makes sure that there is a browser: on the path, else Debian's packages where we are root, else the
Chrome for Testing that Selenium fetches by itself. Where none of it works it says what to install.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.selenium_manager import SeleniumManager


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # Chromium refuses to run as root, as in containers, with it
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOW = "The browser tests need Chromium and its driver: on Debian, apt-get install chromium chromium-driver"


class Browser(NamedTuple):
    """Where a browser and the driver that fits it lie."""

    program: str
    driver: str


def on_path() -> Browser | None:
    """The Chromium and the driver on the path, if both are there."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    driver = shutil.which("chromedriver")
    return Browser(program, driver) if program and driver else None


def from_selenium(*, offline: bool) -> Browser | None:
    """What Selenium fetched before, or, unless ``offline``, fetches now; a Chromium on the path keeps its place."""
    arguments = ["--browser", "chrome", *(["--offline"] if offline else [])]
    if program := next(filter(None, map(shutil.which, NAMES)), None):
        arguments += ["--browser-path", program]
    try:
        paths = SeleniumManager().binary_paths(arguments)
    except (WebDriverException, OSError):
        return None
    return Browser(paths["browser_path"], paths["driver_path"])


def install_with_apt() -> None:
    """Install Debian's packages, where that is possible. Does not fail: what is missing then shows in the search."""
    if not shutil.which("apt-get") or os.geteuid() != 0:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "--no-install-recommends", "chromium", "chromium-driver"],
    ):
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False, stdout=2)


def ensure() -> Browser | None:
    """A browser to test with, installed if need be."""
    found = on_path()
    if found is None:
        install_with_apt()
        found = on_path() or from_selenium(offline=False)
    return found


def start(profile: Path, *, width: int = 1440, height: int = 1000) -> Chrome:
    """A headless browser with a fresh ``profile``, which keeps its console and its network requests.

    Raises FileNotFoundError, saying what to install, where there is none.
    """
    browser = on_path() or from_selenium(offline=True)
    if browser is None:
        raise FileNotFoundError(HOW)
    options = ChromeOptions()
    options.binary_location = browser.program
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=ChromeService(browser.driver))


def console_errors(chrome: Chrome) -> list[str]:
    """What the page wrote to its console as an error since the last call, violations of its policy included."""
    return [entry["message"] for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"]


def requested(chrome: Chrome) -> list[str]:
    """The addresses that the browser asked the network for since the last call, in order."""
    messages: list[dict[str, Any]] = [
        json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")
    ]
    addresses = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    return [address for address in addresses if address.startswith(("http:", "https:"))]


if __name__ == "__main__":
    sys.exit(None if ensure() else HOW)
