"""Benchmarks of the store, from ten thousand to ten million updates.

Their effort is full, or quick, which only shows that they run.
"""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """``sizes`` are lengths of runs in updates. Limits in seconds bound the number of rounds."""

    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    real_samples: int = 32
    figures_s: float = 40.0
    spiky_updates: int = 1_000_000
    ingest_s: float = 4.0
    runs: int = 10_000
    list_s: float = 5.0
    alive: int = 500
    listeners: int = 500
    listening_rounds: int = 3
    against_records: int = 60_000
    against_rounds: int = 5
    stored_updates: int = 200_000
    stored_samples: int = 2_000


FULL = Effort()
QUICK = Effort(
    sizes=(1_000, 10_000),
    real_samples=4,
    figures_s=3.0,
    spiky_updates=20_000,
    ingest_s=0.5,
    runs=500,
    list_s=1.0,
    alive=20,
    listeners=20,
    listening_rounds=1,
    against_records=2_000,
    against_rounds=1,
    stored_updates=5_000,
    stored_samples=100,
)
