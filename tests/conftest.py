"""What tests get on request: a server, a browser, a database. What each gets is in isolated.py."""

from __future__ import annotations

import fcntl
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

import hatch_build
from browser import Lent, kept
from postgres import Postgres, running
from serving import Server, Terminal, free_port
from tools import CHROMIUM, POSTGRESQL
from web.reader import Reader, enter


pytest_plugins = ["costs", "isolated", "skips"]

# Hundreds of processes import ampmon: each would compile all of it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Everything that is imported and collected stays to the end, and looking through it for garbage took a third of the
# start of each worker. `pytest_collection_finish` turns the collector on again.
gc.disable()


def pytest_collection_finish() -> None:
    """Keep what was collected out of all later garbage collections, which begin now."""
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are cores: a third of a test's time is waiting for a server, a browser or a disk."""
    return (os.cpu_count() or 2) * 3 // 2


IN_A_BROWSER = (
    "tests/web/",
    "tests/campaigns/test_pictures.py",
    "tests/end_to_end/test_live_page.py",
    "tests/end_to_end/test_two_servers.py",
    "tests/server/test_report.py",
    "tests/test_demo.py",
)
HALF_WAY = "tests/web/test_l"
"""About half of what is done in a browser comes before it. One worker alone would be at it long after the others."""


@pytest.fixture(scope="session")
def documentation() -> Path:
    """The folder of the documentation site, built from this checkout."""
    hatch_build.SITE.parent.mkdir(exist_ok=True)
    with (hatch_build.SITE.parent / "docs.lock").open("w") as lock:  # the workers share it
        fcntl.flock(lock, fcntl.LOCK_EX)
        hatch_build.build()
    return hatch_build.SITE


SHARED = {
    "scripts": r"^(import scripts|from (training|campaigns\.(clinic\.session|soak\.nursery)))",
    "postgresql": r"postgres: Postgres|empty_database|mark\.engines|databases: Databases|\[\"postgresql\"\]",
}
"""What takes seconds to start, and the files that share it: those with such a line."""


@cache
def _shared(file: Path) -> str:
    return next((what for what, by in SHARED.items() if re.search(by, file.read_text(), re.M)), "")


HEAVIEST = ("tests/device/test_device.py", "scripts", "postgresql", "a browser")
"""What begins first, two for the first worker: by the number of tests, the device would come last."""


class _ByFile(LoadFileScheduling):
    """A file's tests run in one worker; those that open a page share the browsers of two."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if nodeid.startswith(IN_A_BROWSER):
            return "scripts" if nodeid < HALF_WAY else "a browser"  # the first of them train, too
        return _shared(self.config.rootpath / file) or file

    def _assign_work_unit(self, node: WorkerController) -> None:
        if first := next(filter(self.workqueue.__contains__, HEAVIEST), None):
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile:
    return _ByFile(config, log)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of this session's own, started when the first test asks for it."""
    POSTGRESQL.path()
    with running() as server:
        yield server


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[str]:
    """The URL of a PostgreSQL database with nothing in it."""
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts an `ampmon serve`, by default on the test's own data directory, and ends it after the test."""
    started: list[Server] = []

    def start(directory: Path | None = None, **options: Any) -> Server:
        server = Server(directory or tmp_path / "ampmon", **options)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def server(new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Server:
    """An `ampmon serve` that runs started in this test, or in processes that it starts, report to."""
    server = new_server()
    monkeypatch.setenv("AMPMON_URL", server.url)
    monkeypatch.setenv("AMPMON_MODE", "online")
    return server


@pytest.fixture(scope="session")
def own_port() -> int:
    """The port of each server that one test has for itself: the browser compiles the scripts of a new port again."""
    return free_port()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal that a server may be started on."""
    with Terminal() as terminal:
        yield terminal


@pytest.fixture
def named_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in which a browser writes the address that it is opened at, for programs that the test starts."""
    browser, handed = tmp_path / "browser", tmp_path / "handed"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{handed}.part" && mv "{handed}.part" "{handed}"\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setenv("DISPLAY", ":0")
    return handed


@pytest.fixture(scope="session")
def kept_browser() -> Iterator[Lent]:
    """One headless Chromium for the session, started when the first test asks for it."""
    CHROMIUM.path()
    with kept() as lent:
        yield lent


@pytest.fixture
def browser(kept_browser: Lent) -> Iterator[Browser]:
    """The session's browser: while a test has it, `asyncio.run` does not work."""
    with kept_browser() as browser:
        yield browser


@pytest.fixture
def new_reader(browser: Browser) -> Iterator[Callable[[Server], Reader]]:
    """Lets a reader in at a server, with nothing kept of an earlier test; fails the test that gave them a quarrel."""
    readers: list[Reader] = []

    def new(server: Server) -> Reader:
        readers.append(Reader(enter(browser, server), server))
        return readers[-1]

    yield new
    for reader in readers:
        reader.close()
    assert [quarrel for reader in readers for quarrel in reader.quarrels()] == []
