"""What 500 open pages cost a server that takes updates as fast as it can: live streams held open by another process.

Ingest alone and ingest with listeners take turns, each with new runs and ten clients. All streams are of all runs, so
each is told of every run ten times a second at most. The process that listens shares the machine's cores, too. Memory
is the server's resident set after ingest, streams still open.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.paired import ratio, shown
from benchmarks.server import started
from benchmarks.store import load
from benchmarks.store.effort import FULL, Effort
from benchmarks.store.real import real


CLIENTS, SIZE = 10, 1000
LOSS_BAR_PERCENT, MEMORY_BAR_MB = 10.0, 300.0


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """One row. Takes a minute; ``directory`` is filled."""
    alone, beside, told, memory = [], [], 0, 0.0
    with started(directory) as (url, token, process):
        for _ in shown(range(effort.listening_rounds), "listeners"):
            alone.append(_sent(url, token, effort))
            with _listening(url, token, effort.listeners) as heard:
                beside.append(_sent(url, token, effort))
                memory = max(memory, _resident_mb(process))
            told += heard[0]
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
            "advances_told": told,
            "holds": "yes" if held else "no",
        }
    ]


def _sent(url: str, token: str, effort: Effort) -> float:
    """Updates taken in a second."""
    batches = max(int(100_000 * effort.ingest_s) // CLIENTS // SIZE, 1)
    works = [load.plain(batches, SIZE, real(effort.real_samples)) for _ in range(CLIENTS)]
    return load.send([url], token, works, effort.ingest_s).rate


@contextmanager
def _listening(url: str, token: str, streams: int) -> Iterator[list[int]]:
    """Streams held open by a process of their own; afterwards, how many advances came on them in all."""
    command = [sys.executable, "-m", "benchmarks.store.listening", url, token, str(streams)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdout.readline() != "listening\n":
        raise ConnectionError(f"{streams} streams cannot be held open")
    heard: list[int] = []
    try:
        yield heard
    finally:
        process.stdin.close()
        heard.append(int(process.stdout.readline() or 0))
        process.wait(30)
        process.stdout.close()


def _resident_mb(process: int) -> float:
    """Memory that a process holds, in MB; NaN where the system does not say."""
    status = Path(f"/proc/{process}/status")
    if not status.exists():
        return float("nan")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6
