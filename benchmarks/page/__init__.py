"""Benchmarks of the page: latency from an update to its pixels, opening a long run, and memory while open.

Their effort is full, or quick, which only shows that they run.
"""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """Time ``updates`` at a pace, open a run of ``size`` updates ``rounds`` times, and follow a run for ``minutes``."""

    updates: int = 200
    warm_up: int = 100
    per_second: int = 20
    size: int = 10_000_000
    real_samples: int = 32
    rounds: int = 5
    zooms: int = 40
    minutes: float = 30.0


FULL = Effort()
QUICK = Effort(updates=60, warm_up=60, size=20_000, real_samples=4, rounds=1, zooms=4, minutes=0.5)
