"""Readers of the page, at a server that a worker's tests share or at one of a test's own."""

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
    """The server of all tests that tolerate other tests' runs."""
    with Server(tmp_path_factory.mktemp("served") / "ampmon") as server:
        yield server


@pytest.fixture(scope="session")
def seat(kept_browser: Lent, served: Server) -> Iterator[Seat]:
    """The shared server's page, which its readers use in turn."""
    with seated(kept_browser, served) as seat:
        yield seat


@pytest.fixture
def reader(browser: Browser, seat: Seat) -> Iterator[Reader]:
    """A reader of the shared server on a loaded page. Errors, and changes that a test leaves, fail the test."""
    reader = seat.take(browser)
    yield reader
    left = seat.leave(reader)
    assert reader.page_errors() == []
    assert left == []


@pytest.fixture
def passer_by(served: Server, new_reader: Callable[[Server], Reader]) -> Reader:
    """A reader of the shared server with a page of its own, which it may break. No charts are drawn."""
    reader = new_reader(served)
    light(reader.page)
    return reader


@pytest.fixture
def own_reader(
    own_port: int, new_server: Callable[..., Server], new_reader: Callable[[Server], Reader]
) -> Reader:
    """A reader of an empty store, at a server that may be killed."""
    return new_reader(new_server(port=own_port))
