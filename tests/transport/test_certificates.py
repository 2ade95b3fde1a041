"""Over https, clients send nothing until the server shows a trusted certificate for the name they dialled."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampmon.errors import Unreachable
from ampmon.transport import HttpTransport
from ampmon_server.client.client import ApiClient, ClientError
from certificates import Authority
from waiting import DEADLINE_S


@contextlib.contextmanager
def listening(cert: Path, key: Path) -> Iterator[tuple[str, list[bytes]]]:
    """A TLS server: its address, and what each connection has sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    heard: list[bytes] = []

    def listen() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(DEADLINE_S)
                with context.wrap_socket(connection, server_side=True) as secured:
                    heard.append(secured.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}", heard
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def ask_all(url: str) -> list[str]:
    """The errors of both clients that send tokens to the server at ``url``."""
    said = []
    transport = HttpTransport(url, token="a-token")
    try:
        transport.send(b"records")
    except Unreachable as error:
        said.append(str(error))
    transport.close()
    with ApiClient(url, "a-token") as server:
        try:
            server.get("/runs")
        except ClientError as error:
            said.append(str(error))
    return said


def test_a_strangers_certificate_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an unknown authority, another name or an expired certificate, a client sends nothing, not even its token."""
    known, stranger = tmp_path / "known", tmp_path / "stranger"
    known.mkdir(), stranger.mkdir()
    trusted, other = Authority(known), Authority(stranger)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.file))
    for pair in (
        other.issue(),
        trusted.issue("ampmon.example"),
        trusted.issue(days=-1.0),
    ):
        with listening(*pair) as (url, heard):
            said = ask_all(url)
        assert heard == []
        assert len(said) == 2
        assert said[0] == "no answer: the TLS certificate or connection was not accepted"
        assert "certificate" in said[1]
        assert "a-token" not in "".join(said)


def test_a_known_certificate_gets_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its authority in SSL_CERT_FILE, a server gets the token from both clients."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with listening(*authority.issue()) as (url, heard):
        ask_all(url)

    assert [b"Bearer a-token" in each for each in heard] == [True, True]
