"""The cost of authentication for ingest, against a server without access checks, measured in two ways.

`check_us` is the check alone: the time of `/healthz` in an otherwise idle process, with the check minus without it.
`share` is that time as a share of `batch_us`, the time of a batch on a real server without the check, which treats
every client as the holder of its own token. `ratio` compares whole batches over HTTP, with the check over without it:
one client sends to two real servers in turns, pair by pair. The bar applies to `share`; `ratio` is the effect that a
client can measure. The check includes parsing the headers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message

from ampmon.transport import HttpTransport
from ampmon_server.http.app import create_app
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from benchmarks.paired import ratio, take_turns
from benchmarks.server import serving
from benchmarks.store import load
from benchmarks.team import FULL, Effort, open_door, tokens


BAR = 0.03
OPEN = "none asked for"
OWN, MADE = "the server's own", "made by `ampmon token`"
_ROUNDS = 5
_ASKED_PER_S = 400.0
"""Below a server's default limit of requests per second with one token."""


class Door(NamedTuple):
    """A server, and the token that its client sends."""

    url: str
    token: str


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each size of batches and kind of token. Takes two minutes. Fills ``directory``."""
    checks = asyncio.run(_checks(directory / "alone", effort.checks))
    with (
        serving(directory / "guarded", "--no-judging") as (guarded, token, _),
        serving(directory / "open", "--no-judging", module=open_door.__name__) as (wide, own, _),
    ):
        doors = {
            OWN: Door(guarded, token),
            MADE: Door(guarded, tokens.make(guarded, token, "bench")),
            OPEN: Door(wide, own),
        }
        return [row for size in effort.turns for row in _rows(size, doors, checks, effort)]


def _rows(
    size: int, doors: Mapping[str, Door], checks: Mapping[str, float], effort: Effort
) -> list[dict[str, Any]]:
    at_once = effort.turns[size]
    count = at_once * (effort.access_rounds + 1)
    senders = {
        name: _Sender(door, load.plain(count, size), at_once) for name, door in doors.items()
    }
    works = {name: sender.send for name, sender in senders.items()}
    times = take_turns(works, effort.access_rounds, f"batches of {size}")
    for sender in senders.values():
        sender.close()
    batch_us = 1e6 * median(times[OPEN]) / at_once
    rows = []
    for name, check_us in checks.items():
        share = check_us / batch_us
        rows.append(
            {
                "token": name,
                "updates_a_batch": size,
                "batch_us": round(batch_us),
                "check_us": round(check_us, 1),
                "share": round(share, 4),
                "bar": BAR,
                "holds": "yes" if share <= BAR else "no",
                **_without_bar(ratio(times[name], times[OPEN]).row()),
            }
        )
    return rows


def _without_bar(cells: Mapping[str, Any]) -> dict[str, Any]:
    return {name: cells[name] for name in ("ratio", "low", "high")}


class _Sender:
    """A client that sends its next few batches at each turn."""

    def __init__(self, door: Door, work: load.Work, at_once: int) -> None:
        self._transport = HttpTransport(door.url, token=door.token)
        self._batches: Iterator[bytes] = iter(work.batches)
        self._at_once = at_once

    def send(self) -> None:
        for _ in range(self._at_once):
            self._transport.send(next(self._batches))

    def close(self) -> None:
        self._transport.close()


# -- the guard alone --------------------------------------------------------------------------------------------------


async def _checks(directory: Path, times: int) -> dict[str, float]:
    """Microseconds that the guard adds to a request, by kind of token."""
    with closing(Service(Settings(data_directory=directory))) as service:
        secret, _ = service.tokens.new("bench", "bench", ["ingest"])
        app = create_app(service.settings, service)
        app.state.service = service  # as its startup does
        tokens_of = {OWN: service.keys.token, MADE: secret}
        taken: dict[str, list[float]] = {name: [] for name in tokens_of}
        for number in range(_ROUNDS):
            if number:
                await asyncio.sleep(times / _ASKED_PER_S)
            for name, token in tokens_of.items():
                guarded = await _seconds(app, token, times)
                with open_door.opened():
                    taken[name].append(guarded - await _seconds(app, token, times))
        return {name: 1e6 * median(each) / times for name, each in taken.items()}


async def _seconds(app: ASGIApp, token: str, times: int) -> float:
    statuses = set()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.add(message["status"])

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [
        (b"host", b"127.0.0.1:8267"),
        (b"accept-encoding", b"identity"),
        (b"content-type", b"application/msgpack"),
        (b"authorization", f"Bearer {token}".encode()),
    ]
    began = time.perf_counter()
    for _ in range(times):
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/healthz",
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 1),
        }
        await app(scope, receive, send)
    taken = time.perf_counter() - began
    assert statuses == {200}, statuses
    return taken
