"""Updates ingested over HTTP by a server that judges runs as their records arrive, beside one that does not.

Both use SQLite and share the machine with the clients. They take turns, and the first one alternates. Each turn has its
own server, database and runs, and lasts fifteen seconds, or more if the machine is slow: a run is a second old before
it is first judged, and the server rests 40 times as long as a look took. ``cost`` is the relative increase of the
server's processor time per update, on Linux, between the medians of the rounds. The rates depend on what else the
machine does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.diagnosis import FULL, Effort
from benchmarks.paired import shown
from benchmarks.server import serving
from benchmarks.store import load
from benchmarks.store.rates import Crowd
from benchmarks.store.real import real
from benchmarks.store.samples import Real


BAR = 0.05
CROWDS = (Crowd(1, 5000), Crowd(10, 1000))
"""A backlog, and some trainings at once."""

WAYS: dict[str, Sequence[str]] = {"judging": (), "not": ("--no-judging",)}


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each crowd of clients. Takes some minutes. Fills ``directory``."""
    samples = real(effort.real_samples)
    rows = []
    for number, crowd in enumerate(shown(CROWDS, "crowds")):
        rounds = [
            _round(directory / str(number) / str(turn), turn, crowd, samples, effort)
            for turn in range(effort.rounds)
        ]
        rows.append(_row(crowd, rounds))
    return rows


def _round(
    place: Path, number: int, crowd: Crowd, samples: Real, effort: Effort
) -> dict[str, load.Sent]:
    ways = list(WAYS) if number % 2 else list(reversed(WAYS))
    return {way: _took(place / way, WAYS[way], crowd, samples, effort) for way in ways}


def _took(
    place: Path, options: Sequence[str], crowd: Crowd, samples: Real, effort: Effort
) -> load.Sent:
    batches = max(effort.updates // crowd.clients // crowd.size, 1)
    works = [load.plain(batches, crowd.size, samples) for _ in range(crowd.clients)]
    with serving(place, *options) as (url, token, process):
        return load.send([url], token, works, effort.ingest_s, [process])


def _row(crowd: Crowd, rounds: Sequence[dict[str, load.Sent]]) -> dict[str, Any]:
    row: dict[str, Any] = {"clients": crowd.clients, "batch": crowd.size}
    cpu: dict[str, float] = {}
    for way in WAYS:
        row[f"{way}_per_s"] = round(median(each[way].rate for each in rounds))
        known = [us for each in rounds if (us := each[way].processor_us) is not None]
        if len(known) == len(rounds):
            cpu[way] = median(known)
        row[f"{way}_cpu_us"] = round(cpu[way], 2) if way in cpu else None
    cost = cpu["judging"] / cpu["not"] - 1 if len(cpu) == len(WAYS) else None
    row |= {"cost": None if cost is None else round(cost, 3), "bar": BAR}
    holds = None if cost is None else "yes" if cost <= BAR else "no"
    return {**row, "holds": holds}
