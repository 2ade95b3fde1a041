"""Benchmarks of a team's load on a server: access checks, rejected tokens, and many clients at once.

Their effort is full, or quick, which only shows that they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Effort(NamedTuple):
    """``turns`` are the batches to send in one turn, by updates per batch. Times are in seconds."""

    access_rounds: int = 60
    turns: Mapping[int, int] = MappingProxyType({1000: 8, 20: 40})
    checks: int = 1_500
    flood_rounds: int = 6
    flood_per_s: int = 1000
    ingest_s: float = 4.0
    streams: int = 500
    clients: int = 200
    held_s: float = 600.0
    offering: int = 100
    pages: int = 200
    offered_s: float = 60.0


FULL = Effort()
QUICK = Effort(
    access_rounds=12, checks=500, flood_rounds=2, ingest_s=3.0, held_s=60.0, offered_s=10.0
)
