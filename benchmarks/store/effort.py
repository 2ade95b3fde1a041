"""How much is done to measure the store: all of it, or a little of everything to see that it runs."""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """``sizes`` of the runs in updates, and limits in seconds where more rounds would only tell more."""

    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    real_samples: int = 32
    figures_s: float = 60.0
    spiky_updates: int = 1_000_000
    ingest_s: float = 6.0


FULL = Effort()
QUICK = Effort(
    sizes=(1_000, 10_000), real_samples=4, figures_s=3.0, spiky_updates=20_000, ingest_s=0.5
)
