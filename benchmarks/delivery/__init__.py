"""Benchmarks of the delivery from trainer to database: cost, latency, and data loss after a kill.

Their effort is full, or quick, which only shows that they run.
"""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """``paces`` are pairs of updates per second and updates. ``alive_s`` is the range of times until a kill."""

    rounds: int = 6
    hot_pairs: int = 1200
    swept_pairs: int = 80
    paces: tuple[tuple[int, int], ...] = ((20, 600), (200, 4000))
    backlog: int = 1_000_000
    kills: int = 20
    job_kills: int = 10
    alive_s: tuple[float, float] = (2.0, 5.0)
    at_once: int = 3


FULL = Effort()
QUICK = Effort(
    rounds=2,
    hot_pairs=300,
    swept_pairs=10,
    paces=((20, 40), (200, 400)),
    backlog=20_000,
    kills=2,
    job_kills=1,
)
