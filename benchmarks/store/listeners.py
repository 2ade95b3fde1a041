"""What 500 open pages cost a server that ingests at full speed: another process holds their live streams open.

Ingest alone and ingest with listeners take turns, each with new runs and ten clients. All streams follow all runs. The
server sends 200 messages a second in total, so each stream gets one every 2.5 seconds. The listening process shares the
machine's cores. Memory is the server's resident set after ingest, with the streams still open.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.delivery.memory import held_now
from benchmarks.paired import ratio, shown
from benchmarks.processes import Worker, working
from benchmarks.server import serving
from benchmarks.store import FULL, Effort, load
from benchmarks.store.real import real


CLIENTS, SIZE = 10, 1000
LOSS_BAR_PERCENT, MEMORY_BAR_MB = 10.0, 300.0


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """One row. Takes a minute. Fills ``directory``."""
    alone, beside, advances, memory = [], [], 0, 0.0
    with serving(directory) as (url, token, process):
        for _ in shown(range(effort.listening_rounds), "listeners"):
            alone.append(_sent(url, token, effort))
            with listening(url, token, effort.listeners) as listeners:
                beside.append(_sent(url, token, effort))
                memory = max(memory, held_now(process).rss)
            advances += heard(listeners).advances
    kept = ratio(beside, alone)
    loss = 100 * (1 - kept.value)
    held = loss <= LOSS_BAR_PERCENT and memory <= MEMORY_BAR_MB
    return [
        {
            "listeners": effort.listeners,
            "alone_per_s": round(median(alone)),
            "beside_per_s": round(median(beside)),
            "loss_percent": round(loss, 1),
            "low": round(100 * (1 - kept.high), 1),
            "high": round(100 * (1 - kept.low), 1),
            "bar_percent": LOSS_BAR_PERCENT,
            "server_mb": round(memory),
            "bar_mb": MEMORY_BAR_MB,
            "advances_told": advances,
            "holds": "yes" if held else "no",
        }
    ]


def _sent(url: str, token: str, effort: Effort) -> float:
    """Updates ingested per second."""
    batches = max(int(100_000 * effort.ingest_s) // CLIENTS // SIZE, 1)
    works = [load.plain(batches, SIZE, real(effort.real_samples)) for _ in range(CLIENTS)]
    return load.send([url], token, works, effort.ingest_s).rate


class Heard(NamedTuple):
    """Advances on all streams, the fewest on any stream, and the number of streams that had ended."""

    advances: int
    fewest: int
    ended: int


def listening(url: str, token: str, streams: int) -> AbstractContextManager[Worker]:
    """Hold streams open in another process. `heard` reads what it counted."""
    return working("benchmarks.store.listening", url, token, streams)


def heard(listeners: Worker) -> Heard:
    return Heard(*map(int, listeners.counted.split()))
