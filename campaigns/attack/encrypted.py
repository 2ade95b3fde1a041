"""The server's own TLS: old versions, weak ciphers, renegotiation, plain HTTP on its port, and cookie attributes."""

from __future__ import annotations

import random
import shutil
import socket
import ssl
import subprocess
import warnings
from contextlib import suppress

from campaigns.attack.raw import Wire, request
from campaigns.attack.tally import Tally


OLD = (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1)
HELLOS = (
    b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80",  # SSL 2
    b"\x16\x03\x00\x00\x04\x01\x00\x00\x00",  # SSL 3
    b"\x16\x03\x01\xff\xff" + b"\x01" * 300,
    b"\x15\x03\x01\x00\x02\x02\x28",
    b"\x18\x03\x02\x00\x03\x01\x40\x00",  # Heartbleed
)


def plain(tally: Tally, wire: Wire, count: int) -> None:
    """Send plain HTTP, old hellos and noise to the TLS port: no HTTP answer comes back."""
    choice = random.Random(0)
    bare = Wire(wire.port)
    asked = [
        request(method, path, [("Host", f"127.0.0.1:{wire.port}")])
        for method in ("GET", "POST", "HEAD", "PRI")
        for path in ("/", "/healthz", "/login", "/api/v1/runs")
    ]
    noise = [
        choice.randbytes(choice.randrange(1, 600))
        for _ in range(max(count - len(asked) - len(HELLOS), 1))
    ]
    for sent in (*asked, *HELLOS, *noise):
        raw = _received(bare, sent)
        tally.note("what is no TLS, to its port", (sent[:80], raw[:80]), held=b"HTTP/" not in raw)
    tally.note(
        "what is no TLS, to its port", "then", held=wire.ask("GET", "/healthz").status == 401
    )


def _received(wire: Wire, sent: bytes) -> bytes:
    received = b""
    with suppress(OSError), wire.connected() as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            received += part
    return received


def weak(tally: Tally, wire: Wire, count: int) -> None:
    """Offer TLS below 1.2, and ciphers without forward secrecy or authenticated encryption: the server takes none."""
    for version in OLD * count:
        context = _careless(version)
        taken = _handshake(wire, context)
        tally.note("TLS 1.0 or 1.1", version, held=taken is None)
    context = _careless(ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("ALL:COMPLEMENTOFALL:eNULL:@SECLEVEL=0")
    names = {each["name"] for each in context.get_ciphers() if not each["name"].startswith("TLS_")}
    for name in sorted(names):
        context = _careless(ssl.TLSVersion.TLSv1_2)
        context.set_ciphers(f"{name}:@SECLEVEL=0")
        sound = name.startswith(("ECDHE-", "DHE-")) and (
            "GCM" in name or "CHACHA20" in name or "AES" in name
        )
        taken = _handshake(wire, context)
        tally.note("TLS 1.2 with one cipher of its own", (name, taken), held=taken is None or sound)


def _careless(version: ssl.TLSVersion) -> ssl.SSLContext:
    """A client context for this TLS version only, which verifies no certificate and offers every cipher."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def _handshake(wire: Wire, context: ssl.SSLContext) -> object:
    """The negotiated version and cipher, or None if the handshake fails."""
    try:
        with (
            socket.create_connection(("127.0.0.1", wire.port), 5) as bare,
            context.wrap_socket(bare) as taken,
        ):
            return taken.version(), taken.cipher()
    except OSError:
        return None


def renegotiation(tally: Tally, wire: Wire, count: int) -> None:
    """Ask for a renegotiation within TLS 1.2, with an "R" line to `openssl s_client`: the server refuses."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return
    for _ in range(count):
        command = [openssl, "s_client", "-tls1_2", "-connect", f"127.0.0.1:{wire.port}"]
        asked = subprocess.run(command, input=b"R\n", capture_output=True, timeout=30, check=False)
        said = asked.stdout + asked.stderr
        refused = (
            b"no renegotiation" in said
            or b"alert handshake failure" in said
            or b"unexpected eof" in said
        )
        tally.note("renegotiation", said[-300:], held=b"RENEGOTIATING" in said and refused)


def cookies(tally: Tally, wire: Wire, link_path: str) -> None:
    """The cookie of a one-time link is Secure, HttpOnly and SameSite=Lax, and names no domain."""
    (cookie,) = wire.ask("GET", link_path).all("set-cookie")
    said = {part.strip().lower() for part in cookie.split(";")[1:]}
    tally.note(
        "a cookie over TLS",
        cookie,
        held={"secure", "httponly", "samesite=lax"} <= said
        and not any(each.startswith("domain") for each in said),
    )
