"""Over plain http a client sends only a nonce, a token's id and an address before the server proves itself."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon import wire
from ampmon.errors import Unreachable
from ampmon.transport import HttpTransport
from ampmon.transport.proof import digest_of, id_of, proof
from ampmon_server.client.client import ApiClient, ClientError
from ampmon_server.demo.service import DemoServer as Demo
from ampmon_server.http.auth.callers import Proofs
from batches import Trainer
from campaigns.soak.proxy import Proxy
from recording_server import RecordingServer, answer_for
from threaded_server import ThreadedServer
from waiting import DEADLINE_S


TOKEN = "a-token-that-nobody-else-has"
QUESTION = re.compile(
    rb"GET /api/v1/proof\?nonce=[0-9a-f]{64}&token=[0-9a-f]{12}&address=127\.0\.0\.1%3A\d+ HTTP/1\.1\r\n"
    rb"Host: 127\.0\.0\.1:\d+\r\nAccept: application/json\r\n\r\n"
)


@contextlib.contextmanager
def stranger(
    answer: bytes | Callable[[bytes], bytes], host: str = "127.0.0.1"
) -> Iterator[tuple[str, list[bytes]]]:
    """A stranger on a port that gives ``answer``: its address, and what each connection has sent."""
    heard: list[bytes] = []

    def listen(connection: socket.socket) -> None:
        got = b""
        with connection, contextlib.suppress(OSError):
            connection.settimeout(DEADLINE_S)
            try:
                while part := connection.recv(65536):
                    got += part
                    if b"\r\n\r\n" in part:
                        connection.sendall(answer if isinstance(answer, bytes) else answer(got))
                    if answer == b"":
                        break
            finally:
                heard.append(got)

    def accept() -> None:
        threads = []
        with contextlib.suppress(OSError):
            while True:
                threads.append(threading.Thread(target=listen, args=(listener.accept()[0],)))
                threads[-1].start()
        for each in threads:
            each.join()

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        named = f"[{host}]" if ":" in host else host
        try:
            yield f"http://{named}:{listener.getsockname()[1]}", heard
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def ask_all(url: str, folder: Path) -> list[str]:
    """The errors of the clients that send tokens to ``url``. The demo's client must get no answer."""
    (folder / "token").write_text(TOKEN)
    said = []
    transport = HttpTransport(url, token_file=folder / "token")
    with pytest.raises(Unreachable) as kept:
        transport.send(b"records that are nobody else's")
    said.append(str(kept.value))
    with ApiClient(url, TOKEN) as server, pytest.raises(ClientError) as unanswered:
        server.post("/login-links", {"secret": "body"})
    said.append(str(unanswered.value))
    assert Demo(folder, url).ask("/runs") is None
    return said


SENT_BACK = ok(b'{"proof": "%s"}' % (b"0" * 64))
STRANGERS: dict[str, bytes | Callable[[bytes], bytes]] = {
    "an older server": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "one that asks for the token": b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
    "a redirect": b"HTTP/1.1 307 Moved\r\nLocation: /api/v1/proof\r\nContent-Length: 0\r\n\r\n",
    "a page": ok(b"<h1>Welcome to our hotel</h1>"),
    "a list": ok(b"[]"),
    "no text": ok(b'{"proof": 1}'),
    "half a character": ok(b'{"proof": "\\ud800"}'),
    "too much": ok(b" " * 10_000),
    "a wrong proof": SENT_BACK,
    "the nonce": lambda asked: ok(b'{"proof": "%s"}' % asked.partition(b"nonce=")[2][:64]),
    "two answers": SENT_BACK + ok(b'{"acked":{"":0},"version":1}'),
    "bytes": b"\x15\x03\x01\x00\x02\x02\x16\n" * 40,
    "the end": b"",
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_gets_nothing(tmp_path: Path, kind: str) -> None:
    """Whatever a stranger answers, it gets only a nonce, an id and an address, and no error shows the token."""
    with stranger(STRANGERS[kind]) as (url, heard):
        said = ask_all(url, tmp_path)
    assert len(heard) == 3
    assert all(QUESTION.fullmatch(each) for each in heard), heard
    assert len({each.partition(b"nonce=")[2][:64] for each in heard}) == 3
    assert "records" not in "".join(said)
    assert TOKEN not in "".join(said)


def test_it_is_said_who_has_to_do_what(tmp_path: Path) -> None:
    """An older server, an unknown token and a forwarded port each give a message that says what to do."""
    with stranger(STRANGERS["an older server"]) as (url, _):
        assert all("upgrade it" in each for each in ask_all(url, tmp_path))
    with RecordingServer(token="another") as server:
        assert all("does not know the token" in each for each in ask_all(server.url, tmp_path))
        assert server.requests == []
    with stranger(b"HTTP/1.1 421 Misdirected\r\nContent-Length: 0\r\n\r\n") as (url, _):
        flag = f"--allow-host {url.removeprefix('http://')}"
        assert all(flag in each for each in ask_all(url, tmp_path))
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    with stranger(busy) as (url, _):
        assert "HTTP 503" in ask_all(url, tmp_path)[0]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ThreadedServer]:
    server = ThreadedServer(tmp_path / "served", judging=False)
    yield server
    server.close()


def sent(url: str, token_file: Path) -> int:
    """Send three updates and return how many the server at ``url`` has acknowledged."""
    trainer = Trainer()
    transport = HttpTransport(url, token_file=token_file)
    try:
        ack = transport.send(wire.encode(trainer.batch(trainer.updates(3))))
    finally:
        transport.close()
    return ack.acked["scaler"] + 1


def test_a_relay_is_no_server(served: ThreadedServer) -> None:
    """A relay on another port gets no proof from the server unless its address is allowed."""
    token_file = served.directory / "token"
    assert sent(f"http://127.0.0.1:{served.port}", token_file) == 3
    with Proxy(served.port) as relay:
        with pytest.raises(Unreachable, match=f"--allow-host 127.0.0.1:{relay.port}"):
            sent(relay.url, token_file)
        assert relay.counts.total() == 0
        served.stop()
        served.start(allowed_hosts=(f"127.0.0.1:{relay.port}",))
        assert sent(relay.url, token_file) == 3


def test_a_token_of_the_database_is_proven(served: ThreadedServer, tmp_path: Path) -> None:
    """A token of the database works over plain http until it is revoked."""
    tokens = served._service.tokens
    secret, made = tokens.new("ci", "ada", ["ingest"])
    mine = tmp_path / "mine"
    mine.write_text(secret)
    assert sent(f"http://127.0.0.1:{served.port}", mine) == 3
    tokens.revoke(made.id)
    with pytest.raises(Unreachable, match="does not know the token"):
        sent(f"http://127.0.0.1:{served.port}", mine)


def test_a_challenge_leaves_no_secret_in_the_log(
    served: ThreadedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """For a rejected challenge the log has only the route and the status."""
    caplog.set_level(logging.INFO, "ampmon_server")
    with Proxy(served.port) as relay, contextlib.suppress(Unreachable):
        sent(relay.url, served.directory / "token")

    messages = [each.getMessage() for each in caplog.records]
    assert messages == ["GET /api/v1/proof: 421"]


@given(st.text(max_size=60), st.text(max_size=80), st.text(max_size=80), st.data())
def test_a_proof_is_of_all_that_was_asked(
    token: str, nonce: str, address: str, data: st.DataObject
) -> None:
    """Another token, nonce or address gives another proof, even if nonce and address join to the same text."""
    known = digest_of(token)
    mine = proof(known, nonce, address)
    assert proof(known, nonce, address) == mine
    assert len(mine) == 64
    whole = f"{nonce}{address}"
    cut = data.draw(st.integers(0, len(whole)))
    if "\0" not in whole and cut != len(nonce):
        assert proof(known, whole[:cut], whole[cut:]) != mine
    assert proof(digest_of(token + "x"), nonce, address) != mine
    assert proof(known, nonce, address + "x") != mine
    assert id_of(known) not in {mine[:12], token}


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("127.0.0.1:8267", True),
        ("127.0.0.1:9000", True),
        ("hub.example:8267", True),
        ("hub.example:80", True),
        ("hub.example:9000", False),
        ("localhost:8267", False),
        ("[::1]:8267", False),
        ("127.0.0.1:8268", False),
        ("127.0.0.1:82670", False),
        ("hub.example", True),
        ("x127.0.0.1:8267", False),
        ("", False),
        (":8267", False),
    ],
)
def test_only_own_addresses_are_proven(served: ThreadedServer, address: str, own: bool) -> None:
    """A server proves only the address of the connection and named ones, with their port or the usual ports."""
    service = served._service
    proofs = Proofs(service.keys, service.tokens, ["Hub.example", "127.0.0.1:9000"])

    assert proofs.is_own(address, ("127.0.0.1", 8267)) is own
    assert proofs.is_own("[::1]:8267", ("::1", 8267))
    assert proofs.is_own("127.0.0.1:8267", ("::ffff:127.0.0.1", 8267))


def test_the_question_is_what_was_dialled() -> None:
    """The address in a challenge is the one the client has connected to, not a name."""
    with stranger(STRANGERS["a page"]) as (url, heard):
        port = url.rpartition(":")[2]
        transport = HttpTransport(f"http://localhost:{port}/base", token=TOKEN)
        with contextlib.suppress(Unreachable):
            transport.send(b"")
    target = heard[0].split()[1].decode()
    assert urlsplit(target).path == "/base/api/v1/proof"
    assert parse_qs(urlsplit(target).query)["address"] == [f"127.0.0.1:{port}"]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_a_server_is_reached_by_an_ipv6_address() -> None:
    """The address of a challenge and its Host header have brackets once, and the batch follows the proof."""
    answers = ok(b'{"acked":{},"version":1}')

    def answer(got: bytes) -> bytes:
        asked = got.split()[1].decode()
        return answers if b"POST" in got else ok(answer_for(asked, [TOKEN]))

    with stranger(answer, "::1") as (url, heard):
        transport = HttpTransport(url, token=TOKEN)
        assert transport.send(b"a batch").version == 1
        transport.close()
    port = url.rpartition(":")[2]
    assert b"&address=%5B%3A%3A1%5D%3A" + port.encode() in heard[0]
    assert heard[0].count(f"Host: [::1]:{port}\r\n".encode()) == 2
