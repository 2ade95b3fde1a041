"""`ampmon serve --stop-when-idle`, which `ampmon run` uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ampmon_server.http.process import Idle
from doubles import ManualClock
from serving import Server
from waiting import wait_for
from warm import completed


def test_a_server_is_idle_while_nobody_asks_and_nobody_is_connected() -> None:
    """The idle time counts from the last request or the last closed connection."""
    clock = ManualClock()
    idle = Idle(60.0, clock)
    clock.advance(59.0)
    assert not idle.over(requests=0, connections=0)
    assert not idle.over(requests=1, connections=0)
    clock.advance(59.0)
    assert not idle.over(requests=1, connections=1)
    clock.advance(3600.0)
    assert not idle.over(requests=1, connections=1)
    clock.advance(59.0)
    assert not idle.over(requests=1, connections=0)
    clock.advance(1.0)
    assert idle.over(requests=1, connections=0)
    assert not Idle(None, clock).over(requests=0, connections=0)


def test_an_idle_server_stops_by_itself(new_server: Callable[..., Server]) -> None:
    """An idle server exits with 0 and removes its address file."""
    server = new_server(options=["--stop-when-idle", "0.005"])
    assert server.process is not None
    process = server.process
    wait_for(lambda: process.poll() is not None, "the end of the server")
    assert process.poll() == 0
    assert not (server.directory / "server" / "address").exists()


def test_only_a_server_of_one_process_is_idle(tmp_path: Path) -> None:
    """Zero minutes, or several workers, which do not see each other's requests, are rejected."""
    for options in (["--stop-when-idle", "0"], ["--stop-when-idle", "5", "--workers", "2"]):
        done = completed(["serve", "--data-dir", str(tmp_path), *options])
        assert done.returncode == 2
        assert done.stderr.startswith("ampmon serve: --stop-when-idle needs more than 0 minutes")
