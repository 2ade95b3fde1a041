"""The HTTP transport's requests and its handling of answers, at a real server on a real socket."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from ampmon import identity, wire
from ampmon.errors import HeaderMissing, Refused, TransportError, Unreachable
from ampmon.transport import HttpTransport
from recording_server import USUAL, RecordingServer, answer_for
from waiting import DEADLINE_S, wait_for


RUN, ATTEMPT = identity.uuid7(), identity.uuid7()
HEADER = wire.AttemptHeader(
    run_id=RUN, attempt_id=ATTEMPT, project="p", name="n", owner="o", started=1
)


def batch(count: int = 1, *, headers: tuple[wire.Header, ...] = (HEADER,)) -> bytes:
    records = tuple(wire.Event(stream="", seq=i, time=i, kind="init") for i in range(count))
    return wire.encode(
        wire.Batch(
            schema_version=1, run_id=RUN, attempt_id=ATTEMPT, headers=headers, records=records
        )
    )


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


@pytest.fixture
def transport(server: RecordingServer) -> Iterator[HttpTransport]:
    transport = HttpTransport(server.url + "/", token="a-token")
    yield transport
    transport.close()


def test_batch_arrives_and_is_acknowledged(
    server: RecordingServer, transport: HttpTransport
) -> None:
    """A batch is posted as msgpack to the ingest path with the token, and the acknowledgement is returned."""
    assert transport.send(batch(3)) == wire.Ack(acked={"": 2}, version=1)
    request = server.requests[0]
    assert request["path"] == "/api/v1/ingest"
    assert request["Content-Type"] == "application/msgpack"
    assert request["Authorization"] == "Bearer a-token"
    assert len(server.store.records(ATTEMPT)) == 3


def test_records_follow_a_server_that_moves(server: RecordingServer) -> None:
    """Each batch goes to the current address, and the connection to the one before is closed."""
    with RecordingServer() as other:
        at = [server.url]
        transport = HttpTransport(lambda: at[0], token="a-token")
        transport.send(batch())
        transport.send(batch())
        before = transport._connection
        at[0] = other.url
        transport.send(batch())
        assert (len(server.requests), len(other.requests)) == (2, 1)
        assert before is not None
        assert not before.is_connected
        transport.close()


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_large_batches_are_compressed(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """A large batch is compressed with zstd, or gzip without that package, to a quarter at most, and arrives whole."""
    if encoding == "gzip":
        monkeypatch.setitem(sys.modules, "zstandard", None)
    body = batch(1000)
    transport = HttpTransport(server.url, token="a-token")
    transport.send(body)
    transport.close()
    assert server.requests[0]["Content-Encoding"] == encoding
    assert int(server.requests[0]["Content-Length"]) < len(body) / 4
    assert len(server.store.records(ATTEMPT)) == 1000


def test_the_reason_of_a_busy_server_is_reported(
    server: RecordingServer, transport: HttpTransport
) -> None:
    """If a server cannot store a batch, its reason is quoted, such as a full disk. A gateway's page is not."""
    server.planned.extend([(503, {}), (503, {"Server": "a gateway"})])
    for says in ("HTTP 503: as planned", "HTTP 503"):
        with pytest.raises(Unreachable) as raised:
            transport.send(batch())
        assert str(raised.value) == says


@pytest.mark.parametrize("status", [401, 408, 425, 429, 500, 502, 503, 504, 206])
def test_transient_answers_are_worth_trying_again(
    server: RecordingServer, transport: HttpTransport, status: int
) -> None:
    """Outages, overload and an unknown token raise Unreachable, and the next attempt succeeds."""
    server.planned.append((status, {}))
    with pytest.raises(Unreachable, match=str(status)):
        transport.send(batch())
    assert transport.send(batch()).acked == {"": 0}


@pytest.mark.parametrize("status", [400, 403, 404, 405, 410, 413, 415, 422, 301, 307, 308])
def test_final_answers_are_refusals(
    server: RecordingServer, transport: HttpTransport, status: int
) -> None:
    """Permanent failures raise Refused with status and reason, and redirects are not followed."""
    elsewhere = f"{server.url}/elsewhere"
    server.planned.append((status, {"Location": elsewhere}))
    with pytest.raises(Refused, match="as planned") as refused:
        transport.send(batch())
    assert refused.value.status == status
    assert [request["path"] for request in server.requests] == ["/api/v1/ingest"]


def test_missing_header_has_its_own_error(
    server: RecordingServer, transport: HttpTransport
) -> None:
    """409 raises HeaderMissing: the server lacks a header of the batch."""
    with pytest.raises(HeaderMissing):
        transport.send(batch(headers=()))


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("7", 7, 7),
        pytest.param(formatdate(time.time() + 60, usegmt=True), 0, 60, id="date"),
        ("999999", 300, 300),
    ],
)
def test_retry_after_is_understood(
    server: RecordingServer, transport: HttpTransport, value: str, least: float, most: float
) -> None:
    """Retry-After in seconds or as a date is passed on, limited to five minutes."""
    server.planned.append((503, {"Retry-After": value}))
    with pytest.raises(Unreachable) as unreachable:
        transport.send(batch())
    assert unreachable.value.retry_after_s is not None
    assert least <= unreachable.value.retry_after_s <= most


@pytest.mark.parametrize("value", ["soon", "nan", "-5", ""])
def test_senseless_retry_after_is_ignored(
    server: RecordingServer, transport: HttpTransport, value: str
) -> None:
    """A Retry-After that is neither seconds nor a date is ignored."""
    server.planned.append((503, {"Retry-After": value}))
    with pytest.raises(Unreachable) as unreachable:
        transport.send(batch())
    assert unreachable.value.retry_after_s is None


def test_nobody_listening_is_unreachable() -> None:
    """A port without a listener raises Unreachable with "connection refused" in it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(Unreachable, match="connection refused"):
            HttpTransport(url, token="a-token").send(batch())


def test_slow_and_broken_answers_are_unreachable(server: RecordingServer) -> None:
    """A late answer and a lost connection raise Unreachable."""
    impatient = HttpTransport(server.url, token="a-token", read_timeout_s=0.1)
    with server.silent(), pytest.raises(Unreachable, match="timed out"):
        impatient.send(batch())
    impatient.close()
    wait_for(lambda: server.store.batches)  # or this batch would meet what is planned next
    patient = HttpTransport(server.url, token="a-token")
    server.planned.append((0, {}))
    with pytest.raises(Unreachable, match="connection lost"):
        patient.send(batch())
    assert patient.send(batch()).acked == {"": 0}
    patient.close()


@contextlib.contextmanager
def scripted(*scenes: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that proves itself, then plays one scene per connection, in order. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def play() -> None:
            for scene in scenes:
                with listener.accept()[0] as connection, contextlib.suppress(OSError):
                    prove(connection)
                    scene(connection)

        thread = threading.Thread(target=play, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(DEADLINE_S)


def received(connection: socket.socket) -> bytes:
    if not (some := connection.recv(65536)):
        raise ConnectionError("the client is gone")
    return some


def prove(connection: socket.socket) -> None:
    asked = b""
    while b"\r\n\r\n" not in asked:
        asked += received(connection)
    body = answer_for(asked.split()[1].decode(), USUAL)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


ACK = b'{"acked":{"":0},"version":1}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(ACK), ACK)


def heard(connection: socket.socket) -> None:
    """Read a request to its end."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += received(connection)
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    while len(body) < length:
        body += received(connection)


def trickle(connection: socket.socket) -> None:
    heard(connection)
    for byte in ANSWER * 1000:
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def answer_once(connection: socket.socket) -> None:
    heard(connection)
    connection.sendall(ANSWER)
    heard(connection)  # then close without an answer, as a server does at its keep-alive timeout


def answer(connection: socket.socket) -> None:
    heard(connection)
    connection.sendall(ANSWER)


def test_a_server_that_trickles_is_given_up() -> None:
    """A server that sends its answer byte by byte runs into the total timeout, and the next request is answered."""
    with scripted(trickle, answer) as url:
        hasty = HttpTransport(url, token="a-token", read_timeout_s=0.3, total_timeout_s=0.5)
        with pytest.raises(Unreachable, match="timed out"):
            hasty.send(batch())
        hasty.close()
        transport = HttpTransport(url, token="a-token")
        assert transport.send(batch()).acked == {"": 0}
        transport.close()


def test_a_connection_closed_between_requests_is_no_failure() -> None:
    """If a server closes a kept connection as a batch is sent, the batch goes over another one."""
    with scripted(answer_once, answer_once, answer) as url:
        transport = HttpTransport(url, token="a-token")
        for _ in range(3):
            assert transport.send(batch()).acked == {"": 0}
        transport.close()


def test_a_new_connection_that_breaks_is_a_failure() -> None:
    """A new connection that is closed before any answer raises Unreachable and is not retried at once."""
    with scripted(heard, answer) as url:
        transport = HttpTransport(url, token="a-token")
        with pytest.raises(Unreachable, match="connection lost"):
            transport.send(batch())
        assert transport.send(batch()).acked == {"": 0}
        transport.close()


def test_somebody_else_s_server_acknowledges_nothing(
    server: RecordingServer, transport: HttpTransport
) -> None:
    """A 200 that is no acknowledgement, as another program on the port may send, raises Unreachable."""
    server.planned.append((200, {}))
    with pytest.raises(Unreachable, match="not come from an ampmon server"):
        transport.send(batch())


def test_token_file_is_read_at_each_attempt(tmp_path: Path) -> None:
    """The token file is read at each attempt, and a token is sent only to a server that knows it."""
    token_file = tmp_path / "token"
    with RecordingServer(token="second") as server:
        transport = HttpTransport(server.url, token_file=token_file)
        with pytest.raises(Unreachable, match="there is no token"):
            transport.send(batch())
        token_file.write_text("first\n")
        with pytest.raises(Unreachable, match="does not know the token"):
            transport.send(batch())
        token_file.write_text("second\n")
        assert transport.send(batch()).acked == {"": 0}
        token_file.write_text("first\n")
        with pytest.raises(Unreachable, match="does not know the token"):
            transport.send(batch())
        transport.close()
    assert [request.get("Authorization") for request in server.requests] == ["Bearer second"]


@pytest.mark.parametrize("token", ["geheim", "ge\nheim", "geheim\u00e9", "geheim\x00"])
def test_token_is_in_no_error(server: RecordingServer, token: str) -> None:
    """Neither an exception nor its cause contains the token."""
    server.planned.extend([(401, {}), (400, {})])
    for url in (server.url, server.url, "http://127.0.0.1:9", "http://no such host"):
        transport = HttpTransport(url, token=token)
        with pytest.raises(TransportError) as error:
            transport.send(batch())
        seen: BaseException | None = error.value
        while seen is not None:
            assert "heim" not in f"{seen!r}"
            seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        transport.close()
