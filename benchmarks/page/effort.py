"""How much is done to measure the page: all of it, or a little of everything to see that it runs."""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """So many ``updates`` timed at a pace; a run of ``size`` updates opened ``rounds`` times; ``minutes`` live."""

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
