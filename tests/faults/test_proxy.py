"""The faults of the proxy: server, client and its own counts agree on each."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from uuid import UUID

import pytest

from ampmon import wire
from ampmon.errors import Refused, Unreachable
from ampmon.transport import HttpTransport
from campaigns.soak.proxy import FAULTS, Fault, Proxy
from recording_server import RecordingServer
from serving import free_port
from waiting import DEADLINE_S, wait_for


ATTEMPT = UUID(int=2)
PATIENCE_S = 0.15

# How often the server receives the batch, and what the client sees.
MEETS: dict[Fault, tuple[int, str]] = {
    "pass": (1, "acknowledged"),
    "delay": (1, "acknowledged"),
    "drop": (0, "connection lost"),
    "reset": (0, "connection lost"),
    "hang": (0, "timed out"),
    "cut_request": (0, "connection lost"),
    "repeat": (2, "acknowledged"),
    "echo": (2, "acknowledged"),
    "lose_ack": (1, "connection lost"),
    "withhold": (1, "timed out"),
    "cut_answer": (
        1,
        "connection lost|not come from an ampmon server",
    ),  # depends on where it is cut
    "trickle": (1, "acknowledged"),
    "hang_up": (1, "acknowledged"),
    "error": (0, "HTTP 500"),
    "busy": (0, "HTTP 503"),
    "garbage": (0, "connection lost"),
    "nonsense": (0, "not come from an ampmon server"),
    "redirect": (0, "HTTP 307"),
}


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


@pytest.fixture
def proxy(server: RecordingServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        proxy.delay_s, proxy.trickle_s = 0.02, 0.0005
        yield proxy


@pytest.fixture
def connect(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[float], HttpTransport]]:
    """Make clients that wait the given seconds for an answer, and long for a connection."""
    monkeypatch.setattr("ampmon.transport.CONNECT_TIMEOUT_S", DEADLINE_S)
    with ExitStack() as made:
        yield lambda patience_s: made.enter_context(
            closing(HttpTransport(proxy.url, token="a-token", read_timeout_s=patience_s))
        )


def send(transport: HttpTransport, seq: int = 0) -> str:
    """Send a batch of one record and return the outcome in the client's words."""
    attempt = wire.AttemptHeader(
        run_id=UUID(int=1), attempt_id=ATTEMPT, project="p", name="n", owner="o", started=1
    )
    batch = wire.Batch(
        schema_version=wire.SCHEMA_VERSION,
        run_id=attempt.run_id,
        attempt_id=ATTEMPT,
        headers=(attempt,),
        records=(wire.Event(stream="", seq=seq, time=1, kind="init"),),
    )
    try:
        acknowledged = transport.send(wire.encode(batch))
    except (Unreachable, Refused) as error:
        return str(error)
    assert acknowledged.acked == {"": seq}
    return "acknowledged"


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_does_what_it_says(
    server: RecordingServer, proxy: Proxy, connect: Callable[[float], HttpTransport], fault: Fault
) -> None:
    """Server and client see the stated effect of each fault, and the next batch passes."""
    arrivals, outcome = MEETS[fault]
    proxy.next(fault)
    client = connect(PATIENCE_S if outcome == "timed out" else DEADLINE_S)
    assert re.search(outcome, send(client))
    wait_for(lambda: proxy.counts[fault] and len(server.store.batches) >= arrivals)
    proxy.next("pass")
    if outcome == "timed out":  # the timeout has ended the connection
        client = connect(DEADLINE_S)
    # If the kept connection ends just as it is reused, this request is lost.
    if send(client, seq=1) != "acknowledged":
        assert fault == "hang_up"
        assert send(client, seq=1) == "acknowledged"
    assert len(server.store.batches) == arrivals + 1
    assert proxy.counts == ({"pass": 2} if fault == "pass" else {fault: 1, "pass": 1})
    assert proxy.lost_acks == (arrivals == 1 and outcome != "acknowledged")
    wait_for(lambda: proxy.repeated == (arrivals == 2))


def test_chances_are_drawn_alike_from_a_seed(server: RecordingServer) -> None:
    """The same seed treats a sequence of requests alike, at about the rates asked for. After `calm` all pass."""
    fates = []
    for _ in range(2):
        with Proxy(server.port, chances={"drop": 0.3, "error": 0.2}, seed=5) as proxy:
            transport = HttpTransport(proxy.url, token="a-token")
            fates.append([send(transport, seq) for seq in range(60)])
            assert 8 <= proxy.counts["drop"] <= 28
            assert 4 <= proxy.counts["error"] <= 20
            proxy.calm()
            assert {send(transport, seq) for seq in range(20)} == {"acknowledged"}
            transport.close()
    assert fates[0] == fates[1]


def test_server_that_is_away_is_one_that_does_not_answer() -> None:
    """Without a server the client loses its connection, counted as `away` and not as a lost acknowledgement."""
    with Proxy(free_port()) as proxy:
        proxy.next("lose_ack", "repeat")
        transport = HttpTransport(proxy.url, token="a-token")
        for _ in range(3):
            assert "connection lost" in send(transport)
        assert (proxy.counts, proxy.lost_acks) == ({"away": 3}, 0)
        transport.close()


def test_closing_ends_what_hangs(proxy: Proxy) -> None:
    """Closing a proxy ends its hanging connections and stops it from listening."""
    proxy.next("hang")
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        wait_for(lambda: proxy.counts["hang"])
        proxy.close()
        assert client.recv(1) == b""
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", proxy.port))
