"""Clients and servers of different versions."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest

from ampmon import wire
from ampmon.errors import Refused
from ampmon.transport import HttpTransport
from attempts import Attempt
from draining import drain
from serving import Server


def test_sides_of_different_versions_get_along(server: Server, tmp_path: Path) -> None:
    """An unknown kind of record is rejected alone. For another schema version, the server says what to upgrade."""
    transport = HttpTransport(server.url, token=server.token)
    attempt = Attempt(tmp_path / "client", url=server.url)
    attempt.events(20)
    later = {"type": "graph", "stream": "", "seq": attempt.seq, "time": 1, "nodes": [1, 2]}
    assert attempt.spool.append(msgspec.msgpack.encode(later))
    attempt.seq += 1
    attempt.events(20)
    attempt.finish()
    report = drain(tmp_path / "client", lambda _: transport)
    run = server.get(f"/runs/{attempt.run}")
    batch = wire.Batch(schema_version=2, run_id=attempt.run, attempt_id=attempt.id)
    with (
        contextlib.closing(transport),
        pytest.raises(Refused, match=r"this server reads 1\. Upgrade ampmon on the server\."),
    ):
        transport.send(wire.encode(batch))
    (refused,) = server.get("/runs")["refused"]

    assert (report.sent, report.rejected, report.problems) == (41, 1, {})
    assert (run["records"], run["lost_records"], run["status"]) == (41, 1, "finished")
    assert "Upgrade ampmon on the server." in refused
