"""A server with few file descriptors and many unfinished connections still answers others and logs little."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from databases import provide
from serving import free_port
from waiting import DEADLINE_S, wait_for
from warm import start


SOFT, HARD = 64, 256
HALF = {
    "half a head": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-",
    "half a body": b"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
}


class Crowded:
    """An `ampmon serve` with a low limit on open files."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        provide(directory)
        self.log, self.port = directory / "serve.log", free_port()
        limit = f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({SOFT}, {HARD}))"
        command = ["serve", "--port", str(self.port), "--data-dir", str(directory)]
        self.process = start(command, self.log, before=limit)

    def healthy(self) -> bool:
        with contextlib.suppress(urllib3.exceptions.HTTPError), urllib3.PoolManager() as http:
            url = f"http://127.0.0.1:{self.port}/healthz"
            return http.request("GET", url, retries=False, timeout=5).status < 500
        return False


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Crowded]:
    server = Crowded(tmp_path / "data")
    wait_for(server.healthy)
    yield server
    server.process.kill()
    server.process.wait(DEADLINE_S)


def connections(port: int, count: int, piece: bytes, stack: contextlib.ExitStack) -> None:
    """Open ``count`` connections that each send this piece and then nothing."""
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S))
        with contextlib.suppress(ConnectionError):
            connection.sendall(piece)


def test_unfinished_requests_keep_nobody_out(crowded: Crowded) -> None:
    """A server holding more unfinished requests than its limit of open files answers others and logs little."""
    with contextlib.ExitStack() as stack:
        for piece in HALF.values():
            connections(crowded.port, HARD, piece, stack)
            wait_for(crowded.healthy)

    assert resource.prlimit(crowded.process.pid, resource.RLIMIT_NOFILE) == (HARD, HARD)
    assert len(crowded.log.read_bytes()) < 20_000
