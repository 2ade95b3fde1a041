"""The server's memory with five hundred open pages and two hundred active trainings, for ten minutes.

A real server uses SQLite. One process holds the streams open, and the clients are threads of another. Every two
seconds, each client sends the 40 updates of that time. Each stream follows all runs. Memory is read every second, after
a first tenth of the time for all to start. It is flat if the last third's median is at most 5 % above the first's.
`each_tenth_mb` shows its course, and `fewest_told` is the number of advances on the stream with the fewest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.delivery.memory import Held, held_now
from benchmarks.paired import shown
from benchmarks.server import serving
from benchmarks.store.listeners import Heard, heard, listening
from benchmarks.team import FULL, Effort
from benchmarks.team.crowd import sending


EVERY_S, UPDATES = 2.0, 40
"""The time between a client's batches, and the updates in each: 20 updates a second."""
BAR_MB, BAR_GROWTH = 300.0, 0.05


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """One row. Takes ``effort.held_s`` seconds. Fills ``directory``."""
    with serving(directory) as (url, token, server):
        at_rest = held_now(server)
        with (
            listening(url, token, effort.streams) as listeners,
            sending(url, token, effort.clients, effort.held_s, EVERY_S, UPDATES) as crowd,
        ):
            time.sleep(effort.held_s / 10)
            seen = list(_looks(server, effort.held_s * 0.9))
    counted, listened = json.loads(crowd.counted), heard(listeners)
    return [
        {
            **_of_memory(at_rest, seen, effort),
            "streams_ended": listened.ended,
            "advances_told": listened.advances,
            "fewest_told": listened.fewest,
            "updates_per_s": round(counted["taken"] / effort.held_s),
            "told_to_wait": counted["told_to_wait"],
            "clients_failed": counted["failed"],
            "holds": "yes" if holds(seen, listened, counted["failed"]) else "no",
        }
    ]


def holds(seen: Sequence[Held], heard: Heard, failed: int) -> bool:
    """Whether memory is flat and within its bar, and all streams and clients were served to the end."""
    served = heard.fewest > 0 and not heard.ended and not failed
    return served and max(each.rss for each in seen) <= BAR_MB and _growth(seen) <= BAR_GROWTH


def _looks(server: int, seconds: float) -> Iterator[Held]:
    for _ in shown(range(max(int(seconds), 3)), "held"):
        time.sleep(1.0)
        yield held_now(server)


def _of_memory(at_rest: Held, seen: Sequence[Held], effort: Effort) -> dict[str, Any]:
    first, last = _thirds(seen)
    return {
        "streams": effort.streams,
        "clients": effort.clients,
        "seconds": round(effort.held_s),
        "at_rest_mb": round(at_rest.rss),
        "first_third_mb": round(first, 1),
        "last_third_mb": round(last, 1),
        "growth": round(_growth(seen), 4),
        "bar_growth": BAR_GROWTH,
        "each_tenth_mb": " ".join(f"{each:.0f}" for each in _tenths(seen)),
        "most_mb": round(max(each.rss for each in seen)),
        "most_pss_mb": round(max(each.pss for each in seen)),
        "bar_mb": BAR_MB,
    }


def _tenths(seen: Sequence[Held]) -> list[float]:
    """The median RSS in MB in each tenth of the readings."""
    size = max(len(seen) // 10, 1)
    return [
        median(each.rss for each in seen[at : at + size])
        for at in range(0, min(10 * size, len(seen)), size)
    ]


def _growth(seen: Sequence[Held]) -> float:
    first, last = _thirds(seen)
    return last / first - 1


def _thirds(seen: Sequence[Held]) -> tuple[float, float]:
    """The median RSS in MB in the first and in the last third of the readings."""
    third = max(len(seen) // 3, 1)
    return median(each.rss for each in seen[:third]), median(each.rss for each in seen[-third:])
