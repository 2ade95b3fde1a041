"""Fixtures for a server, a browser or a database, and the distribution of tests to workers."""

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

# Hundreds of processes import ampmon, and each would compile it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Everything imported and collected stays to the end. Searching it for garbage took a third of each worker's start.
# `pytest_collection_finish` turns the collector on again.
gc.disable()


def pytest_collection_finish() -> None:
    """Exclude what was collected from garbage collection, and turn collection on."""
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """1.5 workers per core, because a third of a test's time is waiting for a server, a browser or a disk."""
    return (os.cpu_count() or 2) * 3 // 2


IN_A_BROWSER = (
    "tests/web/",
    "tests/campaigns/test_pictures.py",
    "tests/end_to_end/test_live_page.py",
    "tests/end_to_end/test_two_servers.py",
    "tests/server/test_report.py",
    "tests/test_demo.py",
)
WITH_SCRIPTS = "tests/web/test_d"
"""Browser tests before this one run in the worker of the scripts. A group with over a third of the work ends last."""


@pytest.fixture(scope="session")
def documentation() -> Path:
    """The folder of the documentation site, built from this checkout."""
    hatch_build.SITE.parent.mkdir(exist_ok=True)
    with (hatch_build.SITE.parent / "docs.lock").open("w") as lock:  # shared by the workers
        fcntl.flock(lock, fcntl.LOCK_EX)
        hatch_build.build()
    return hatch_build.SITE


SHARED = {
    "scripts": r"^(import scripts|from (training|campaigns\.(clinic\.session|soak\.round)))",
    "postgresql": r"postgres: Postgres|empty_database|mark\.engines|databases: Databases|\[\"postgresql\"\]",
}
"""Resources that take seconds to start, and a pattern for the files that share them."""


@cache
def _shared(file: Path) -> str:
    return next((what for what, by in SHARED.items() if re.search(by, file.read_text(), re.M)), "")


HEAVIEST = ("tests/device/test_device.py", "scripts", "postgresql", "a browser")
"""These groups start first, two on the first worker. By number of tests, the device would start last."""


class _ByFile(LoadFileScheduling):
    """Run all tests of a file in one worker. Files that open a page share the browsers of two workers."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if nodeid.startswith(IN_A_BROWSER):
            return "scripts" if nodeid < WITH_SCRIPTS else "a browser"  # some of the first train
        return _shared(self.config.rootpath / file) or file

    def _assign_work_unit(self, node: WorkerController) -> None:
        if first := next(filter(self.workqueue.__contains__, HEAVIEST), None):
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile:
    return _ByFile(config, log)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's own PostgreSQL server, started when the first test needs it."""
    POSTGRESQL.path()
    with running() as server:
        yield server


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts an `ampmon serve`, by default on the test's data directory, and stops it after the test."""
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
    """An `ampmon serve` that receives the runs of this test and of its child processes."""
    server = new_server()
    monkeypatch.setenv("AMPMON_URL", server.url)
    monkeypatch.setenv("AMPMON_MODE", "online")
    return server


@pytest.fixture(scope="session")
def own_port() -> int:
    """The port of each single-test server. It never changes, because the browser compiles scripts again per port."""
    return free_port()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as terminal:
        yield terminal


@pytest.fixture
def named_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which a fake browser writes the URL it opens, for programs that the test starts."""
    browser, handed = tmp_path / "browser", tmp_path / "handed"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{handed}.part" && mv "{handed}.part" "{handed}"\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setenv("DISPLAY", ":0")
    return handed


@pytest.fixture(scope="session")
def kept_browser() -> Iterator[Lent]:
    """One headless Chromium for the session, started when the first test needs it."""
    CHROMIUM.path()
    with kept() as lent:
        yield lent


@pytest.fixture
def browser(kept_browser: Lent) -> Iterator[Browser]:
    """The session's browser. `asyncio.run` fails while a test uses it."""
    with kept_browser() as browser:
        yield browser


@pytest.fixture
def new_reader(browser: Browser) -> Iterator[Callable[[Server], Reader]]:
    """Signs in to a server with a fresh reader. The test fails if the reader's page reported a problem."""
    readers: list[Reader] = []

    def new(server: Server) -> Reader:
        readers.append(Reader(enter(browser, server), server))
        return readers[-1]

    yield new
    for reader in readers:
        reader.close()
    assert [quarrel for reader in readers for quarrel in reader.page_errors()] == []
