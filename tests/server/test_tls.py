"""Other machines reach a server over TLS alone: by its own certificate, or through a named proxy."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import urllib3
from cryptography.hazmat.primitives import serialization
from fastapi import FastAPI
from starlette.testclient import TestClient

from ampmon.errors import ConfigurationError
from ampmon_server.http.app import create_app
from ampmon_server.http.auth.proxies import Proxies
from ampmon_server.http.certificate import SOON_S, WARNED_EVERY_S, Certificate
from ampmon_server.settings import Settings
from certificates import Authority
from serving import Server, Terminal
from warm import completed


PROXY = "192.0.2.7"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def pair(authority: Authority) -> list[str]:
    """The flags of a sound certificate."""
    cert, key = authority.issue()
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


def own_address() -> str:
    """An address of this machine outside the loopback interface; skip the test if there is none."""
    with socket.socket(type=socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((PROXY, 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address that others could reach")
        return str(asked.getsockname()[0])


def test_with_a_certificate_others_are_served(
    new_server: Callable[..., Server], authority: Authority, pair: list[str], terminal: Terminal
) -> None:
    """With a certificate the link has its name, the cookie is Secure, plain HTTP fails, and the CLI connects."""
    server = new_server(options=["--host", "0.0.0.0", *pair], ca=authority.file, terminal=terminal)
    assert re.fullmatch(r"https://localhost:\d+/login\?code=\S+", server.address)
    http = urllib3.PoolManager(retries=False, ca_certs=str(authority.file))
    cookie = http.request("GET", server.address, redirect=False).headers["Set-Cookie"]
    with pytest.raises(urllib3.exceptions.ProtocolError):
        http.request("GET", server.url.replace("https", "http"))
    metrics = server.request("GET", "/metrics").data.decode()
    asked = completed(
        ["token", "list", "--data-dir", str(server.directory)],
        environment={**os.environ, "SSL_CERT_FILE": str(authority.file)},
    )

    assert "secure" in cookie.lower()
    assert re.search(r"^ampmon_certificate_end_seconds [1-9]", metrics, re.MULTILINE)
    assert (asked.returncode, asked.stderr) == (0, "")


def spoilt(authority: Authority, how: str) -> tuple[Path, Path]:
    """A certificate and a key with the defect ``how``."""
    cert, key = authority.issue(called=how, days=-1.0 if how == "expired" else 365.0)
    if how == "of another":
        key = authority.issue(called="other")[1]
    if how == "passphrase":
        whole = serialization.load_pem_private_key(key.read_bytes(), None)
        locked = serialization.BestAvailableEncryption(b"a passphrase")
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key.write_bytes(whole.private_bytes(*form, locked))
    if how == "no PEM":
        cert.write_text("nothing")
    if how == "not there":
        key.unlink()
    return cert, key


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("expired", "certificate has expired"),
        ("of another", "key values mismatch"),
        ("passphrase", "has a passphrase"),
        ("no PEM", "are not a certificate and its key"),
        ("not there", "cannot be read"),
    ],
)
def test_a_certificate_that_is_of_no_use_is_named(
    authority: Authority, how: str, says: str
) -> None:
    """An expired, mismatched, locked, damaged or missing certificate is refused with the reason."""
    with pytest.raises(ConfigurationError, match=says):
        Certificate(*spoilt(authority, how))


def test_it_is_refused_in_one_line(authority: Authority, pair: list[str], tmp_path: Path) -> None:
    """An expired certificate, a missing key and a proxy range of all addresses are each refused in one line."""
    cert, key = spoilt(authority, "expired")
    for flags, says in (
        (["--tls-cert", str(cert), "--tls-key", str(key)], "expired"),
        (pair[:2], "--tls-key"),
        (["--behind-proxy", "0.0.0.0/0"], "--behind-proxy"),
    ):
        done = completed(["serve", "--port", "0", "--data-dir", str(tmp_path), *flags])
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(rf"ampmon serve: [^\n]*{says}[^\n]*\n", done.stderr), done.stderr


def test_its_end_is_announced_once_a_day(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Two weeks before a certificate expires, the log starts to warn, at once and then once a day."""
    caplog.set_level(logging.INFO)
    certificate = Certificate(*authority.issue(days=30.0))
    soon = certificate.ends_s - SOON_S
    for now in (soon - 1, soon + 1, soon + 3600, soon + WARNED_EVERY_S, soon + 1 + WARNED_EVERY_S):
        certificate.look(now)

    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]
    assert "replace the file" in caplog.text


def shown(context: ssl.SSLContext, authority: Authority) -> int:
    """The serial number of the certificate that a server with this context presents."""

    async def look() -> int:
        server = await asyncio.start_server(
            lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context
        )
        trusting = ssl.create_default_context(cafile=str(authority.file))
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
        number = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        server.close()
        return int(number, 16)

    return asyncio.run(look())


def test_a_renewed_one_is_shown(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """A renewed certificate is presented after the next check; a damaged replacement is not."""
    cert, key = authority.issue(called="renewed", days=10.0)
    certificate = Certificate(cert, key)
    first, ends_s = shown(certificate.context, authority), certificate.ends_s
    authority.issue(called="renewed", days=300.0)
    certificate.look()
    second = shown(certificate.context, authority)
    cert.write_text("nothing")
    certificate.look()

    assert first != second == shown(certificate.context, authority)
    assert certificate.ends_s > ends_s
    assert "stays" in caplog.text


def answers(host: str, port: int) -> bool:
    """Whether a request to this address gets any answer."""
    with socket.create_connection((host, port), 5) as connection:
        try:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection.recv(1) != b""
        except ConnectionError:
            return False


def test_only_the_named_proxy_may_connect(new_server: Callable[..., Server]) -> None:
    """A server behind a proxy answers no other address, except programs on its own machine."""
    here = own_address()
    server = new_server(options=["--host", "0.0.0.0", "--behind-proxy", PROXY])
    assert not answers(here, server.port)
    assert answers("127.0.0.1", server.port)
    assert server.get("/runs")["total"] == 0
    assert server.address == server.url


@pytest.mark.parametrize(
    ("address", "taken"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        (PROXY, True),
        (f"::ffff:{PROXY}", True),
        ("10.1.2.15", True),
        ("10.1.2.16", False),
        ("192.0.2.8", False),
        ("", False),
        (None, False),
    ],
)
def test_a_proxy_is_known_by_its_address(address: str | None, taken: bool) -> None:
    """Proxies admit their addresses and networks and loopback alone; without any, everyone is admitted."""
    assert Proxies([PROXY, "10.1.2.0/28"]).admits(address) is taken
    assert Proxies([]).admits(address)


@pytest.fixture
def behind(settings: Settings) -> Iterator[FastAPI]:
    """A server behind the proxy."""
    app = create_app(
        Settings(
            data_directory=settings.data_directory,
            behind_proxy=(PROXY,),
            allowed_hosts=("ampmon.example",),
            judging=False,
        )
    )
    with TestClient(app):
        yield app


def asked(app: FastAPI, peer: str, *protocols: str, scheme: str = "http") -> tuple[int, str]:
    """Request a login link as ``peer`` with these X-Forwarded-Proto; return the status and the link's scheme."""
    token = app.state.service.keys.token
    headers = [("Authorization", f"Bearer {token}")]
    headers += [("X-Forwarded-Proto", each) for each in protocols]
    client = TestClient(app, base_url=f"{scheme}://ampmon.example", client=(peer, 50000))
    answer = client.post("/api/v1/login-links", headers=headers)
    return answer.status_code, json.loads(answer.content).get("url", "").partition("ampmon")[0]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_proxy_has_to_be_asked_over_tls(behind: FastAPI, scheme: str) -> None:
    """A proxy's request needs X-Forwarded-Proto: https exactly once, whatever the proxy's own scheme."""
    assert asked(behind, PROXY, "https", scheme=scheme) == (201, "https://")
    assert asked(behind, PROXY, "http", scheme=scheme) == (403, "")
    assert asked(behind, PROXY, scheme=scheme) == (403, "")
    assert asked(behind, PROXY, "https", "http", scheme=scheme) == (403, "")
    assert asked(behind, PROXY, "https", "https", scheme=scheme) == (403, "")
    assert asked(behind, "192.0.2.8", "https", scheme=scheme) == (403, "")
    assert asked(behind, "127.0.0.1", "https", scheme=scheme) == (201, "https://")
    assert asked(behind, "127.0.0.1", scheme=scheme) == (201, f"{scheme}://")
