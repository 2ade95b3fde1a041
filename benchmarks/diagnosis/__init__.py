"""Benchmarks of judging runs: on request, and as their records arrive.

Their effort is full, or quick, which only shows that they run.
"""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """``sizes`` are lengths of runs in updates. Each of ``rounds`` sends ``updates`` in at most ``ingest_s`` seconds.

    ``active`` runs send for ``active_s`` seconds.
    """

    sizes: tuple[int, ...] = (10_000, 1_000_000, 10_000_000)
    real_samples: int = 32
    asking_s: float = 30.0
    updates: int = 500_000
    ingest_s: float = 30.0
    rounds: int = 3
    active: int = 200
    active_s: float = 120.0


FULL = Effort()
QUICK = Effort(
    sizes=(1_000, 10_000),
    real_samples=4,
    asking_s=2.0,
    updates=20_000,
    ingest_s=1.5,
    rounds=1,
    active=20,
    active_s=15.0,
)
