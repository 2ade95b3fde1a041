"""How much is done to measure the delivery: all of it, or a little of everything to see that it runs."""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """``paces`` are updates per second and how many of them; ``alive_s`` is how long a process lives that is killed."""

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
