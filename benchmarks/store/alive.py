"""The server's memory with five hundred runs alive, each of them sampled, on SQLite.

Each run has a model of 148 parameters and a client of its own. All clients send at once, in rounds: a batch of a
hundred updates of every run, two of them sampled. Memory is the peak of the server's resident set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.delivery.memory import held_now, watched
from benchmarks.server import serving
from benchmarks.store import FULL, Effort, load
from benchmarks.store.real import real


BATCHES, SIZE, EVERY = 8, 100, 50
LIMIT_S = 300.0
BAR_MB = 250.0


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """One row. Takes two minutes. Fills ``directory``."""
    samples = real(effort.real_samples)
    works = [load.sampled(BATCHES, SIZE, samples, EVERY) for _ in range(effort.alive)]
    with serving(directory) as (url, token, server):
        at_rest = held_now(server)
        with watched({"server": server}) as peaks:
            sent = load.send([url], token, works, LIMIT_S)
    peak = peaks["server"].rss
    whole = sent.records == effort.alive * BATCHES * SIZE
    return [
        {
            "runs": effort.alive,
            "updates": sent.records,
            "sampled": sent.records // EVERY,
            "per_s": round(sent.rate),
            "at_rest_mb": round(at_rest.rss),
            "peak_mb": round(peak),
            "bar_mb": BAR_MB,
            "holds": "yes" if whole and peak <= BAR_MB else "no",
        }
    ]
