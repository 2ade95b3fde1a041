"""A reader for each test of the page, before a server that all tests of a worker share, or before one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from serving import Server
from web.reader import Reader


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that do not mind the runs of the others."""
    server = Server(tmp_path_factory.mktemp("served") / "ampmon")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def reader(new_reader: Callable[[Server], Reader], served: Server) -> Reader:
    """A reader of the shared server."""
    return new_reader(served)


@pytest.fixture
def own_reader(server: Server, new_reader: Callable[[Server], Reader]) -> Reader:
    """A reader before an empty store, of a server that may be killed."""
    return new_reader(server)
