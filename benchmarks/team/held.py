"""Five hundred pages open and two hundred trainings at work, for ten minutes: what the server holds of memory.

A real server on SQLite; the streams are held open by a process, and the clients are threads of another. Each client
sends the 40 updates of the last two seconds, every two seconds, and each stream is of all runs. Memory is looked at
every second, after a tenth of the time in which all come in. It is flat if what is held in the last third of the time
is within a twentieth of what is held in the first; `each_tenth_mb` shows how it got there, and `fewest_told` is what
came on the stream that was told least.
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
from benchmarks.server import started
from benchmarks.store.listeners import Heard, listening
from benchmarks.team.effort import FULL, Effort
from benchmarks.team.processes import working


EVERY_S, UPDATES = 2.0, 40
"""Between a client's batches, and in each: 20 updates a second."""
BAR_MB, BAR_GROWTH = 300.0, 0.05


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """One row. Takes as long as is held; ``directory`` is filled."""
    with started(directory) as (url, token, server):
        at_rest = held_now(server)
        with (
            listening(url, token, effort.streams) as heard,
            working(
                *("benchmarks.team.crowd", url, token),
                *map(str, (effort.clients, effort.held_s, EVERY_S, UPDATES)),
            ) as (_, sent),
        ):
            time.sleep(effort.held_s / 10)
            seen = list(_looks(server, effort.held_s * 0.9))
    counted = json.loads(sent[0])
    return [
        {
            **_of_memory(at_rest, seen, effort),
            "streams_ended": heard[0].ended,
            "advances_told": heard[0].advances,
            "fewest_told": heard[0].fewest,
            "updates_per_s": round(counted["taken"] / effort.held_s),
            "told_to_wait": counted["told_to_wait"],
            "clients_failed": counted["failed"],
            "holds": "yes" if holds(seen, heard[0], counted["failed"]) else "no",
        }
    ]


def holds(seen: Sequence[Held], heard: Heard, failed: int) -> bool:
    """Memory is flat and within its bar, and whoever was there was served to the end."""
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
    """The median of what was held in each tenth of the time in which it was looked at."""
    size = max(len(seen) // 10, 1)
    return [
        median(each.rss for each in seen[at : at + size])
        for at in range(0, min(10 * size, len(seen)), size)
    ]


def _growth(seen: Sequence[Held]) -> float:
    first, last = _thirds(seen)
    return last / first - 1


def _thirds(seen: Sequence[Held]) -> tuple[float, float]:
    """The median of what was held in the first third of the time, and in the last."""
    third = max(len(seen) // 3, 1)
    return median(each.rss for each in seen[:third]), median(each.rss for each in seen[-third:])
