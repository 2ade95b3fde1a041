"""The parts of the attack. Each starts the server it needs, attacks it, and counts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from campaigns.attack import cells, encrypted, forged, framing, links, spelled, targets
from campaigns.attack.links import Account
from campaigns.attack.raw import Wire
from campaigns.attack.tally import Tally
from certificates import Authority
from postgres import running
from serving import Server


BASE_PATH = "/user/me/ampmon"
_ELSEWHERE = "192.0.2.7"

Part = Callable[[Tally, Path, int], None]
"""Takes a tally, a folder of its own, and n: it tries every nth attack of each kind."""


def smuggled(tally: Tally, folder: Path, nth: int) -> None:
    """Ambiguous framing, sent to a server that trusts a proxy."""
    with _serving(folder, "--behind-proxy", "127.0.0.1") as server:
        framing.smuggle(tally, Wire(server.port), server.token, nth)


def signed_in(tally: Tally, folder: Path, nth: int) -> None:
    """Identity and Host headers, sent to a server behind an authenticating proxy."""
    options = ["--host", "0.0.0.0", "--behind-proxy", forged.PROXY, "--behind-proxy", _ELSEWHERE]
    with _serving(folder, *options, "--trust-user-header", forged.USER_HEADER) as server:
        others = [Wire(server.port), Wire(server.port, source="127.0.0.3")]
        own = _own_address()
        if own is not None:
            others.append(Wire(server.port, host=own))
        believed = Wire(server.port, source=forged.PROXY)
        answer = believed.ask(
            "GET", "/api/v1/me", (forged.USER_HEADER, "ada"), ("X-Forwarded-Proto", "https")
        )
        assert answer.status == 200, answer
        forged.identities(tally, server.port, others, nth)
        forged.hosts(tally, Wire(server.port), server.token, nth)


def encrypting(tally: Tally, folder: Path, nth: int) -> None:
    """TLS itself, and changes from other pages with a cookie set over TLS."""
    with _tls(folder) as (server, wire):
        account = Account(wire, server.token)
        encrypted.plain(tally, wire, 400 // nth)
        encrypted.weak(tally, wire, max(50 // nth, 1))
        encrypted.renegotiation(tally, wire, max(20 // nth, 1))
        for _ in range(max(20 // nth, 1)):
            encrypted.cookies(tally, wire, f"/login?code={account.code()}")
        forged.origins(tally, wire, account.cookie(), nth)
        forged.hosts(tally, wire, server.token, nth)


def walked(tally: Tally, folder: Path, nth: int) -> None:
    """Every spelling of every route, on a server with a base path."""
    with _serving(folder, "--base-path", BASE_PATH) as server:
        wire = Wire(server.port)
        token = Account(wire, server.token).new_token("reader", "read")
        spelled.walk(tally, wire, token, BASE_PATH, nth)


def linked(tally: Tally, folder: Path, nth: int) -> None:
    """One-time links, tokens and sessions, on two processes with PostgreSQL and TLS."""
    with running() as postgres:
        options = ["--database-url", postgres.new_database(), "--workers", "2"]
        with _tls(folder, *options) as (server, wire):
            account = Account(wire, server.token)
            links.races(tally, account, max(60 // nth, 2))
            links.misled(tally, account, nth)
            links.revoked(tally, account, max(10 // nth, 1))
            links.guesses(tally, account, max(250 // nth, 20))


def alerted(tally: Tally, folder: Path, nth: int) -> None:
    """Alert targets. No server runs."""
    targets.addresses(tally, max(200 // nth, 10))
    targets.options(tally)
    targets.delivered(tally, nth)


def shown(tally: Tally, folder: Path, nth: int) -> None:
    with _serving(folder) as server:
        cells.show(tally, server, server.directory, nth)


PARTS: Mapping[str, Part] = {
    "smuggled": smuggled,
    "signed-in": signed_in,
    "encrypted": encrypting,
    "walked": walked,
    "linked": linked,
    "alerted": alerted,
    "shown": shown,
}


@contextmanager
def _serving(folder: Path, *options: str, ca: Path | None = None) -> Iterator[Server]:
    with Server(folder, options=options, ca=ca) as server:
        yield server
        assert server.answers()
    assert "Traceback" not in server.printed, server.printed


@contextmanager
def _tls(folder: Path, *options: str) -> Iterator[tuple[Server, Wire]]:
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder)
    cert, key = authority.issue()
    secured = ("--tls-cert", str(cert), "--tls-key", str(key))
    with _serving(folder / "ampmon", *secured, *options, ca=authority.file) as server:
        yield server, Wire(server.port, ca=authority.file)


def _own_address() -> str | None:
    """An address of this machine outside the loopback interface, or None."""
    with socket.socket(type=socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect((_ELSEWHERE, 9))  # nothing is sent
        return str(asked.getsockname()[0])
    return None
