"""Updates taken over HTTP by a server that judges runs as their records arrive, beside one that does not.

Both on SQLite, server and clients on the same machine, in rounds of several seconds that take turns, which of the two
goes first changing each time. Each round has a server, a database and runs of its own; a run is a second old before it
is judged for the first time. ``ratio`` is the median of the rounds' own ratios: of the two measured side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.diagnosis.effort import FULL, Effort
from benchmarks.paired import shown
from benchmarks.server import serving
from benchmarks.store import load
from benchmarks.store.rates import Crowd
from benchmarks.store.real import Real, real


BAR = 0.95
CROWDS = (Crowd(1, 5000), Crowd(10, 1000), Crowd(50, 50))
"""A backlog, some trainings at once, and many that send what has just happened."""

WAYS: dict[str, Sequence[str]] = {"judging": (), "not": ("--no-judging",)}


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each crowd of clients. Takes some minutes; ``directory`` is filled."""
    samples = real(effort.real_samples)
    rows = []
    for number, crowd in enumerate(shown(CROWDS, "crowds")):
        place = directory / str(number)
        rounds = [
            _round(place / str(turn), turn, crowd, samples, effort) for turn in range(effort.rounds)
        ]
        rows.append(_row(crowd, rounds))
    return rows


def _round(
    place: Path, number: int, crowd: Crowd, samples: Real, effort: Effort
) -> dict[str, float]:
    """Records taken in a second, both ways."""
    ways = list(WAYS) if number % 2 else list(reversed(WAYS))
    rates = {}
    for way in ways:
        with serving(place / way, *WAYS[way]) as (url, token):
            rates[way] = _sent(url, token, crowd, samples, effort).rate
    return rates


def _sent(url: str, token: str, crowd: Crowd, samples: Real, effort: Effort) -> load.Sent:
    """What a crowd sent, of more work than fits into the time at the bar of ingest."""
    batches = max(int(1.5 * crowd.bar * effort.ingest_s) // crowd.clients // crowd.size, 1)
    works = [load.plain(batches, crowd.size, samples) for _ in range(crowd.clients)]
    return load.send([url], token, works, effort.ingest_s)


def _row(crowd: Crowd, rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    ratios = [each["judging"] / each["not"] for each in rounds]
    ratio = median(ratios)
    return {
        "what": crowd.what,
        "clients": crowd.clients,
        "batch": crowd.size,
        "judging_per_s": round(median(each["judging"] for each in rounds)),
        "not_per_s": round(median(each["not"] for each in rounds)),
        "ratio": round(ratio, 3),
        "least": round(min(ratios), 3),
        "greatest": round(max(ratios), 3),
        "bar": BAR,
        "holds": "yes" if ratio >= BAR else "no",
    }
