"""The server's time to diagnose a run of ten thousand to ten million updates, one in a hundred sampled.

Requests go over HTTP on loopback to a server in its own process, without an ETag. Runs of all sizes take turns. The
samples are real ones of 148 parameters, recombined. Each run has an overflow once per growth_interval, and is silent,
because its records are old. ``cpu_ms`` is the server's processor time per diagnosis, on Linux. The response time is
longer if others use the machine too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ampmon_server.settings import Settings
from benchmarks.diagnosis import FULL, Effort
from benchmarks.processor import seconds
from benchmarks.server import serving
from benchmarks.store.filling import fill
from benchmarks.store.real import real
from benchmarks.store.timing import Client, in_turns
from benchmarks.store.track import track


BAR_MS = 1000.0
COUNTED = 10


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each size of run. Takes some minutes at ten million updates. Fills ``directory``."""
    settings = Settings(data_directory=directory / "sqlite")
    samples = real(effort.real_samples)
    runs = fill(settings, [(track(size, seed=size), samples) for size in effort.sizes])
    with serving(settings.data_directory, "--no-judging") as (url, token, process):
        client = Client(token)
        asks = {
            size: partial(client.get, f"{url}/api/v1/runs/{run}/diagnosis")
            for size, run in zip(effort.sizes, runs, strict=True)
        }
        answers = {size: json.loads(ask()) for size, ask in asks.items()}
        cost = {size: _cpu_ms(process, ask) for size, ask in asks.items()}
        times = in_turns(asks, "diagnoses", limit_s=effort.asking_s)
    return [
        {
            "updates": size,
            "p50_ms": round(of.p50, 1),
            "p95_ms": round(of.p95, 1),
            "cpu_ms": cost[size],
            "requests": of.requests,
            "findings": ", ".join(each["rule"] for each in answers[size]["findings"]) or None,
            "bar_ms": BAR_MS,
            "holds": "yes" if of.p95 <= BAR_MS else "no",
        }
        for size, of in times.items()
    ]


def _cpu_ms(process: int, ask: Callable[[], object]) -> float | None:
    """Mean processor time of a process per request in ms, or None if unknown."""
    before = seconds(process)
    for _ in range(COUNTED):
        ask()
    after = seconds(process)
    return None if before is None or after is None else round(1000 * (after - before) / COUNTED, 1)
