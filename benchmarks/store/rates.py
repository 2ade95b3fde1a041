"""How many updates per second a server ingests over HTTP, from few clients and many, beside other tools' servers.

Server and clients share the machine. Batches are as large as a sender's: full if one client delivers a backlog, small
if many deliver their latest updates. They are encoded before the clock starts. The time includes compressing, sending,
and waiting if the server asks for it. ``processor_us`` is the processor time of servers and PostgreSQL for each update,
which more cores would share. Other tools get four scalars per update, in batches of a thousand scalars, the most that
MLflow's server accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import peers
from benchmarks.paired import shown
from benchmarks.report import filled
from benchmarks.server import serving
from benchmarks.store import FULL, Effort, databases, load, peer_ingest
from benchmarks.store.real import real
from tests.postgres import Postgres


UPDATES_BAR, SAMPLED_BAR = 60_000, 1_200
CROWDED_BAR, CROWDED_SAMPLED_BAR = 30_000, 500
"""If a hundred clients or more send small batches."""
POSTGRESQL_BAR = 50_000
"""For updates that are not sampled, of one server."""


class Crowd(NamedTuple):
    """``clients`` that each send batches of ``size`` updates, sampled or not."""

    clients: int
    size: int
    sampled: bool = False

    @property
    def what(self) -> str:
        return "sampled updates" if self.sampled else "updates"

    @property
    def bar(self) -> int:
        if self.clients >= 100:
            return CROWDED_SAMPLED_BAR if self.sampled else CROWDED_BAR
        return SAMPLED_BAR if self.sampled else UPDATES_BAR


ON_SQLITE = (
    Crowd(1, 5000),
    Crowd(10, 1000),
    Crowd(200, 100),
    Crowd(1, 45, sampled=True),
    Crowd(10, 20, sampled=True),
    Crowd(200, 2, sampled=True),
)
"""A sender's largest batch holds 45 samples of 148 parameters."""

ON_POSTGRESQL = (Crowd(10, 1000), Crowd(10, 20, sampled=True))
SERVERS = (1, 2, 4)
BESIDE = (1, 10)
"""The numbers of clients of other tools' servers."""


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each crowd of clients, and for each other tool. Takes three minutes. Fills ``directory``."""
    rows = [_on_sqlite(directory / f"sqlite-{n}", *each) for n, each in _each(ON_SQLITE, effort)]
    with databases.postgresql() as server:
        if isinstance(server, str):
            rows.append({"store": "PostgreSQL", "note": server})
        else:
            for servers in SERVERS:
                for n, each in _each(ON_POSTGRESQL, effort):
                    place = directory / f"postgresql-{servers}-{n}"
                    rows.append(_on_postgresql(place, server, servers, *each))
    with peers.quiet(directory):
        for tool, peer in peer_ingest.TOOLS.items():
            rows += _beside(directory / peer.package, tool, peer, effort)
    return filled(rows)


def _each(crowds: Sequence[Crowd], effort: Effort) -> Iterator[tuple[int, tuple[Crowd, Effort]]]:
    for number, crowd in enumerate(shown(crowds, "crowds")):
        yield number, (crowd, effort)


def _on_sqlite(place: Path, crowd: Crowd, effort: Effort) -> dict[str, Any]:
    with serving(place) as (url, token, process):
        sent = _sent([url], token, [process], crowd, effort)
        return _row("ampmon", "SQLite", 1, crowd, sent, crowd.bar)


def _on_postgresql(
    place: Path, database: Postgres, servers: int, crowd: Crowd, effort: Effort
) -> dict[str, Any]:
    """Clients are distributed over the servers, which are processes on one database."""
    where, urls, processes = database.new_database(), [], [database.process]
    with ExitStack() as stack:
        for _ in range(servers):
            url, token, process = stack.enter_context(serving(place, "--database-url", where))
            urls.append(url)
            processes.append(process)
        sent = _sent(urls, token, processes, crowd, effort)
        bar = POSTGRESQL_BAR if servers == 1 and not crowd.sampled else None
        return _row("ampmon", "PostgreSQL", servers, crowd, sent, bar)


def _sent(
    urls: Sequence[str], token: str, processes: Sequence[int], crowd: Crowd, effort: Effort
) -> load.Sent:
    """Have a crowd send somewhat more work than fits into the time at the bar."""
    samples = real(effort.real_samples)
    seconds = effort.ingest_s / 2 if crowd.sampled else effort.ingest_s
    batches = max(int(1.3 * crowd.bar * seconds) // crowd.clients // crowd.size, 1)
    make = load.sampled if crowd.sampled else load.plain
    works = [make(batches, crowd.size, samples) for _ in range(crowd.clients)]
    return load.send(urls, token, works, seconds, processes)


def _row(
    tool: str,
    engine: str,
    servers: int,
    crowd: Crowd,
    sent: load.Sent,
    bar: int | None = None,
) -> dict[str, Any]:
    return {
        "tool": tool,
        "what": crowd.what,
        "store": engine,
        "servers": servers,
        "clients": crowd.clients,
        "batch": crowd.size,
        "per_s": round(sent.rate),
        "processor_us": None if sent.processor_us is None else round(sent.processor_us, 1),
        "bar": bar,
        "holds": None if bar is None else "yes" if sent.rate >= bar else "no",
        "told_to_wait": sent.refused,
        "note": None,
    }


def _beside(work: Path, tool: str, peer: peer_ingest.Peer, effort: Effort) -> list[dict[str, Any]]:
    work.mkdir()
    sent: list[load.Sent] = []  # keeps those before an error
    send = partial(peer_ingest.send, peer, work, BESIDE, effort.ingest_s)
    _, note = peers.tried(peer.package, lambda: sent.extend(send()))
    rows = [
        _row(tool, "SQLite", 1, Crowd(clients, peer_ingest.SIZE), each)
        for clients, each in zip(BESIDE, sent, strict=False)
    ]
    missing = [
        {"tool": tool, "what": "updates", "clients": clients, "note": note}
        for clients in BESIDE[len(rows) :]
    ]
    return [*rows, *missing]
