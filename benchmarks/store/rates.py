"""How many updates a server takes in a second over HTTP, from few clients and many, and what other tools' servers take.

Server and clients share the machine. A batch holds what a sender would put into it: all there is room for where one
client delivers a backlog, few where many deliver what has just happened. Encoded before the clock starts; compressing
and sending is in the time, and so is waiting where the server asks for it. Other tools are sent four scalars for each
update, in the largest batches that their servers take.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.server import serving
from benchmarks.store import load
from benchmarks.store.effort import FULL, Effort
from benchmarks.store.real import Real, real


UPDATES_BAR, SAMPLED_BAR = 60_000, 3_000


class Crowd(NamedTuple):
    """So many clients, each with batches of so many updates, sampled or not."""

    clients: int
    size: int
    sampled: bool

    @property
    def what(self) -> str:
        return "sampled updates" if self.sampled else "updates"

    @property
    def bar(self) -> int:
        return SAMPLED_BAR if self.sampled else UPDATES_BAR


ON_SQLITE = (
    Crowd(1, 5000, False),
    Crowd(10, 1000, False),
    Crowd(200, 100, False),
    Crowd(1, 45, True),
    Crowd(10, 20, True),
    Crowd(200, 2, True),
)
"""As many samples of 148 parameters as the sender's largest batch holds are 45."""


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each crowd of clients. Takes two minutes; ``directory`` is filled."""
    samples = real(effort.real_samples)
    rows = []
    for crowd in ON_SQLITE:
        work = directory / f"{crowd.clients}-{crowd.what.replace(' ', '-')}"
        work.mkdir()
        with serving(work) as (url, token):
            rows.append(_row("SQLite", 1, crowd, _sent(url, token, crowd, samples, effort)))
    return rows


def _sent(url: str, token: str, crowd: Crowd, samples: Real, effort: Effort) -> load.Sent:
    """What a crowd sent, of as much work as a server several times faster than the bar could take."""
    records = int(2 * crowd.bar * effort.ingest_s)
    batches = max(records // crowd.clients // crowd.size, 1)
    make = load.sampled if crowd.sampled else load.plain
    works = [make(batches, crowd.size, samples) for _ in range(crowd.clients)]
    return load.send(url, token, works, effort.ingest_s)


def _row(engine: str, servers: int, crowd: Crowd, sent: load.Sent) -> dict[str, Any]:
    return {
        "what": crowd.what,
        "store": engine,
        "servers": servers,
        "clients": crowd.clients,
        "batch": crowd.size,
        "per_s": round(sent.rate),
        "bar": crowd.bar,
        "holds": "yes" if sent.rate >= crowd.bar else "no",
        "told_to_wait": sent.refused,
    }
