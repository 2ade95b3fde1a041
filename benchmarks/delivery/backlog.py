"""Memory under a backlog, and the time to deliver it: updates are recorded while the server is down.

A real scaler processes a given gradient for a tenth of the updates. The others go straight to its recorder, because a
million iterations would take ten minutes. Beside it, a stock scaler does the same iterations in a process that never
loads ampmon: the difference of their peaks is monitoring's memory. Then the server starts, and memory is watched until
the last update is stored. RSS is the system's high-water mark since a process's start, with all libraries. PSS counts
only a part of the memory that processes share.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from ampmon import sender
from ampmon.spool import Position, spools
from ampmon.spool.layout import bytes_behind
from benchmarks.delivery import FULL, Effort
from benchmarks.delivery.memory import Peak, watched
from benchmarks.delivery.training import training
from benchmarks.server import free_port, serving


BARS_MB = {"server": 300.0, "sender": 60.0, "training process above the stock one": 10.0}
WORK = "gradients"
TRAINED_ONE_IN = 10
STOCK, TRAINER = "stock training process", "trainer"
STORED_WITHIN_S = 1200.0
SENDER_WITHIN_S = 20.0


class Delivered(NamedTuple):
    """Peaks by process, the times to record and to deliver the backlog, and its size on disk."""

    peaks: dict[str, Peak]
    made_s: float
    disk_mb: float
    drained_s: float


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each figure. Takes some minutes at a million updates. Fills ``directory``."""
    found = _deliver(directory / "data", effort.backlog)
    stock, trainer = found.peaks.pop(STOCK), found.peaks.pop(TRAINER)
    above = Peak(trainer.rss - stock.rss, trainer.pss - stock.pss)
    peaks = {**found.peaks, "training process above the stock one": above}
    return [
        *(row for name, peak in peaks.items() for row in _memory(name, peak, BARS_MB[name])),
        *_memory(STOCK, stock),
        _row("backlog", effort.backlog, "updates"),
        _row("backlog on disk", found.disk_mb, "MB"),
        _row("time to record it", found.made_s, "s"),
        _row("time to deliver it, from the server's start", found.drained_s, "s"),
        _row("delivered", effort.backlog / found.drained_s, "updates per s"),
    ]


def _deliver(directory: Path, updates: int) -> Delivered:
    port = free_port()
    server = (directory, f"http://127.0.0.1:{port}")
    trained = updates // TRAINED_ONE_IN
    with (
        training(WORK, trained, monitored=None) as stock,
        training(WORK, trained, monitored=server, recorded=updates - trained) as trainer,
    ):
        began = time.perf_counter()
        sending = _sender(directory)
        with watched(
            {STOCK: stock.process.pid, TRAINER: trainer.process.pid, "sender": sending}
        ) as peaks:
            trainer.read()  # its last update has returned
            made_s = time.perf_counter() - began
            stock.read()
            waiting = sum(bytes_behind(path, Position(0, 0)) for path in spools(directory))
            began = time.perf_counter()
            with (
                serving(directory, "--port", str(port)) as (_, _, process),
                watched({"server": process}) as more,
            ):
                _wait(lambda: _stored(directory) >= updates, STORED_WITHIN_S, "stored")
                drained_s = time.perf_counter() - began
                if (stored := _stored(directory)) != updates:
                    raise RuntimeError(f"{stored} of {updates} updates were stored")
    return Delivered({**more, **peaks}, made_s, waiting / 1e6, drained_s)


def _sender(directory: Path) -> int:
    """Wait for a sender and return its process id."""
    _wait(lambda: sender.status(directory) is not None, SENDER_WITHIN_S, "a sender")
    found = sender.status(directory)
    assert found is not None
    return found.pid


def _stored(directory: Path) -> int:
    """The number of updates of the only run. Raises RuntimeError if records are missing."""
    path = directory / "server" / "ampmon.db"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT updates, lost, dropped FROM runs").fetchone()
    if found is None:
        return 0
    updates, *missing = found
    if any(missing):
        raise RuntimeError(f"records are missing: {missing} lost and dropped")
    return int(updates)


def _wait(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not {what} within {limit_s:.0f} s")
        time.sleep(0.1)


def _memory(name: str, peak: Peak, bar: float | None = None) -> list[dict[str, Any]]:
    return [_row(f"{name}, RSS", peak.rss, "MB", bar), _row(f"{name}, PSS", peak.pss, "MB")]


def _row(what: str, value: float, unit: str, bar: float | None = None) -> dict[str, Any]:
    return {
        "what": what,
        "value": round(value, 1),
        "unit": unit,
        "bar": bar,
        "to_bar": None if bar is None else round(value / bar, 2),
        "holds": None if bar is None else "yes" if value <= bar else "no",
    }
