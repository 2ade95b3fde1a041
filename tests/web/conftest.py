"""A reader for each test of the page, before a server that all tests of a worker share, or before one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from browser import Lent
from serving import Server
from web.reader import Reader, light
from web.seat import Seat, seated


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, documentation: Path) -> Iterator[Server]:
    """One server for all tests that do not mind the runs of the others."""
    server = Server(tmp_path_factory.mktemp("served") / "ampmon")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def seat(kept_browser: Lent, served: Server) -> Iterator[Seat]:
    """The page of the shared server that the readers of it use one after another."""
    with seated(kept_browser, served) as seat:
        yield seat


@pytest.fixture
def reader(browser: Browser, seat: Seat) -> Iterator[Reader]:
    """A reader of the shared server, at a page that was loaded before: what a test leaves behind there fails it."""
    reader = seat.take(browser)
    yield reader
    left = seat.leave(reader)
    assert reader.quarrels() == []
    assert left == []


@pytest.fixture
def passer_by(served: Server, new_reader: Callable[[Server], Reader]) -> Reader:
    """A reader of the shared server who may leave or spoil the page, which draws nothing and is no one else's."""
    reader = new_reader(served)
    light(reader.page)
    return reader
