"""Clients reach an https server through the proxy that the environment names: a real one, which only tunnels."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampmon import identity, sender, wire
from ampmon.config import Route, route_to
from ampmon.errors import Unreachable
from ampmon.transport import HttpTransport
from ampmon_server.client.client import ApiClient, ClientError, RequestRefused
from attempts import Attempt, seqs
from certificates import Authority
from connect_proxy import ConnectProxy
from recording_server import RecordingServer
from waiting import wait_for


NAME = "ampmon.example"
"""A name that only the proxy can resolve."""
URL = f"https://{NAME}:8267"


def batch(count: int = 1) -> bytes:
    run, attempt = identity.uuid7(), identity.uuid7()
    header = wire.AttemptHeader(
        run_id=run, attempt_id=attempt, project="p", name="n", owner="o", started=1
    )
    records = tuple(wire.Event(stream="", seq=i, time=i, kind="init") for i in range(count))
    return wire.encode(
        wire.Batch(
            schema_version=1, run_id=run, attempt_id=attempt, headers=(header,), records=records
        )
    )


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    return authority


@pytest.fixture
def server(authority: Authority) -> Iterator[RecordingServer]:
    with RecordingServer(pair=authority.issue(NAME)) as server:
        yield server


@pytest.fixture
def proxy(server: RecordingServer) -> Iterator[ConnectProxy]:
    with ConnectProxy({f"{NAME}:8267": server.port}) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({"HTTPS_PROXY": "http://p:1"}, URL, "http://p:1"),
        ({"https_proxy": "p:1"}, URL, "p:1"),
        ({"HTTPS_PROXY": "http://p:1", "https_proxy": ""}, URL, None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other, .example"}, URL, None),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": f"{NAME}:8267"}, URL, None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": f"{NAME}:443"}, URL, "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, URL, None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a,10.0.0.0/8"}, "https://10.1.2.3:8267", None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "https://11.1.2.3", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "http://p:1"}, f"http://{NAME}", None),
        ({"HTTP_PROXY": "http://p:1"}, URL, None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://localhost:8267", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://127.0.0.2", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://[::1]:8267", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://[fd00::1]:8267", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "https://[", None),
        ({"ALL_PROXY": "http://p:1"}, URL, "http://p:1"),
        ({"ALL_PROXY": "http://p:1", "HTTPS_PROXY": "http://q:1"}, URL, "http://q:1"),
        ({"ALL_PROXY": "http://p:1", "NO_PROXY": NAME}, URL, None),
        ({"ALL_PROXY": "http://p:1"}, f"http://{NAME}", None),
        ({"ALL_PROXY": "SOCKS5h://p:1"}, URL, None),
        ({"ALL_PROXY": "socks5://p:1", "HTTPS_PROXY": "http://q:1"}, URL, "http://q:1"),
        ({}, URL, None),
    ],
)
def test_the_environment_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, proxy: str | None
) -> None:
    """HTTPS_PROXY, else ALL_PROXY, counts for https, in either case. NO_PROXY, loopback and http are excepted."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert route_to(url).proxy == proxy


def test_a_socks_proxy_of_all_programs_is_not_used(
    monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    """With SOCKS in ALL_PROXY, both clients connect directly. If nothing answers, they say so."""
    monkeypatch.setenv("ALL_PROXY", "socks5://me:geheim@127.0.0.1:9")
    monkeypatch.setattr("ampmon.config.is_loopback", lambda host: False)
    with RecordingServer(pair=authority.issue("127.0.0.1")) as server:
        url = f"https://127.0.0.1:{server.port}"
        transport = HttpTransport(url, token="a-token", route=route_to(url))
        transport.send(batch())
        transport.close()
        with ApiClient(url, "a-token") as client, pytest.raises(RequestRefused):
            client.get("/runs")
    with pytest.raises(Unreachable, match="without the SOCKS proxy of ALL_PROXY"):
        transport.send(batch())
    with (
        ApiClient(url, "a-token") as client,
        pytest.raises(ClientError, match="without the SOCKS proxy of ALL_PROXY"),
    ):
        client.get("/runs")


@pytest.mark.parametrize("over_tls", [False, True])
def test_both_clients_use_the_tunnel(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, server: RecordingServer, over_tls: bool
) -> None:
    """Batches and commands arrive. The proxy gets its password, and a CONNECT for each connection, but no token."""
    pair = authority.issue("127.0.0.1", called="proxy") if over_tls else None
    with ConnectProxy({f"{NAME}:8267": server.port}, pair) as proxy:
        named = f"{'https' if over_tls else 'http'}://me:p%40ss@{proxy.netloc}/"
        transport = HttpTransport(URL, token="a-token", route=Route(named))
        transport.send(batch())
        transport.send(batch(2))
        transport.close()
        monkeypatch.setenv("HTTPS_PROXY", named)
        with ApiClient(URL, "a-token") as client, pytest.raises(RequestRefused) as refused:
            client.get("/runs")

    assert refused.value.status == 404  # this server knows no runs
    assert [each["path"] for each in server.requests] == ["/api/v1/ingest"] * 2 + ["/api/v1/runs"]
    password = f"Basic {b64encode(b'me:p@ss').decode()}"
    assert proxy.requests == [("CONNECT", f"{NAME}:8267", password)] * 2


def test_a_connection_that_was_closed_is_tunnelled_again(
    server: RecordingServer, proxy: ConnectProxy
) -> None:
    """After the server has closed a connection, a new tunnel is made, and the proxy still sees no request."""
    transport = HttpTransport(URL, token="a-token", route=Route(proxy.netloc))
    server.planned.append((503, {"Connection": "close"}))
    with pytest.raises(Unreachable, match="503"):
        transport.send(batch())
    server.planned.append((0, {}))
    with pytest.raises(Unreachable, match="through the proxy"):
        transport.send(batch())
    transport.send(batch())
    transport.close()
    assert [method for method, *_ in proxy.requests] == ["CONNECT"] * 3


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("http://me:geheim@{netloc}", "through the proxy {netloc}: the proxy answers HTTP 403"),
        ("http://me:geheim@127.0.0.1:9", "through the proxy 127.0.0.1:9: connection refused"),
        ("socks5://me:geheim@{netloc}", "HTTPS_PROXY is not an address such as http://"),
        (
            "socks5://me:geheim@{netloc}",
            "SOCKS cannot be used: set HTTPS_PROXY, or list the server in NO_PROXY",
        ),
        ("http://me:geheim@", "HTTPS_PROXY is not an address such as http://"),
        ("http://me:geh€im@{netloc}", "HTTPS_PROXY is not an address such as http://"),
    ],
)
def test_a_proxy_that_does_not_work_is_named(
    monkeypatch: pytest.MonkeyPatch, named: str, why: str
) -> None:
    """The errors of both clients say that the proxy is at fault, and quote no password."""
    with ConnectProxy({}) as proxy:
        named, why = (each.replace("{netloc}", proxy.netloc) for each in (named, why))
        transport = HttpTransport(URL, token="a-token", route=Route(named))
        with pytest.raises(Unreachable) as unreachable:
            transport.send(batch())
        monkeypatch.setenv("HTTPS_PROXY", named)
        with pytest.raises(ClientError) as failed, ApiClient(URL, "a-token") as client:
            client.get("/runs")
    assert why in str(unreachable.value)
    assert why.rpartition(": ")[2] in str(failed.value)
    assert "geh" not in f"{unreachable.value}{failed.value}"


def test_a_stranger_behind_the_tunnel_gets_nothing(
    authority: Authority, server: RecordingServer
) -> None:
    """A certificate of another name ends the connection before a byte of the request."""
    with ConnectProxy({"other.example:443": server.port}) as proxy:
        transport = HttpTransport(
            "https://other.example", token="a-token", route=Route(proxy.netloc)
        )
        with pytest.raises(Unreachable, match="the TLS certificate"):
            transport.send(batch())
    assert server.requests == []


@pytest.mark.parametrize("over_tls", [False, True])
def test_a_tunnel_has_the_time_limit_of_a_request(
    authority: Authority, server: RecordingServer, over_tls: bool
) -> None:
    """A server that does not answer is given up in time through a proxy too."""
    pair = authority.issue("127.0.0.1", called="proxy") if over_tls else None
    with ConnectProxy({f"{NAME}:8267": server.port}, pair) as proxy, server.silent():
        named = f"{'https' if over_tls else 'http'}://{proxy.netloc}"
        transport = HttpTransport(URL, token="a-token", route=Route(named), total_timeout_s=0.3)
        with pytest.raises(Unreachable, match="timed out"):
            transport.send(batch())


def test_a_new_run_brings_its_route_to_a_sender_at_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    authority: Authority,
    server: RecordingServer,
    proxy: ConnectProxy,
) -> None:
    """Records that waited for lack of a proxy and of trust in a certificate follow once a later run has both."""
    directory = tmp_path / "data"
    monkeypatch.delenv("SSL_CERT_FILE")
    before = Attempt(directory, url=URL)
    before.event()
    command = [sys.executable, "-m", "ampmon.sender", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        wait_for(lambda: (status := sender.status(directory)) and status.problem(URL))
        monkeypatch.setenv("SSL_CERT_FILE", os.path.relpath(authority.file))
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.netloc}")
        after = Attempt(directory, url=URL)
        after.event()
        for attempt in (before, after):
            wait_for(lambda attempt=attempt: seqs(server.store.records(attempt.id)) == [0])
            attempt.spool.close()
        process.terminate()
