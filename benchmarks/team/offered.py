"""How many of five hundred small batches a second a server ingests from a hundred trainings, beside two hundred pages.

A real server uses SQLite. One process holds the pages' streams open, each of all runs, and the clients are threads of
another. Each client sends ten updates every fifth of a second, one batch at a time, or at once when it is behind. The
clients share the machine's cores with the server. `p50_ms` and `p99_ms` are the times from a batch's first try until it
was acknowledged. `lost` counts updates that were acknowledged but are not in the database afterwards.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.paired import shown
from benchmarks.server import serving
from benchmarks.store.listeners import heard, listening
from benchmarks.store.timing import Client
from benchmarks.team import FULL, Effort
from benchmarks.team.crowd import sending


EVERY_S, UPDATES = 0.2, 10
BAR_PER_S, BAR_P99_MS = 250, 1000
"""The bars of the store's next design."""


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """One row. Takes ``effort.offered_s`` seconds. Fills ``directory``."""
    with serving(directory) as (url, token, _):
        with (
            listening(url, token, effort.pages) as listeners,
            sending(url, token, effort.offering, effort.offered_s, EVERY_S, UPDATES) as crowd,
        ):
            for _ in shown(range(round(effort.offered_s)), "offered"):
                time.sleep(1.0)
        counted = json.loads(crowd.counted)
        runs = json.loads(Client(token).get(f"{url}/api/v1/runs?limit={effort.offering}"))["runs"]
    per_s = counted["taken"] / UPDATES / effort.offered_s
    p50_ms, p99_ms = (1000 * counted[name] for name in ("p50_s", "p99_s"))
    lost = counted["taken"] - sum(run["updates"] for run in runs)
    return [
        {
            "clients": effort.offering,
            "listeners": effort.pages,
            "updates_a_batch": UPDATES,
            "offered_per_s": round(effort.offering / EVERY_S),
            "taken_per_s": round(per_s, 1),
            "bar_per_s": BAR_PER_S,
            "p50_ms": round(p50_ms),
            "p99_ms": round(p99_ms),
            "bar_p99_ms": BAR_P99_MS,
            "lost": lost,
            "told_to_wait": counted["told_to_wait"],
            "clients_failed": counted["failed"],
            "streams_ended": heard(listeners).ended,
            "holds": "yes" if holds(per_s, p99_ms, lost, counted["failed"]) else "no",
        }
    ]


def holds(per_s: float, p99_ms: float, lost: int, failed: int) -> bool:
    """Whether rate and latency are within their bars, no acknowledged update is lost, and no client failed."""
    return per_s >= BAR_PER_S and p99_ms <= BAR_P99_MS and lost <= 0 and not failed
