"""How fast a real server ingests updates over HTTP and answers with figures: one client, one server, SQLite."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from uuid import UUID, uuid4

import msgspec
import numpy as np
import urllib3

from ampmon import wire
from ampmon.numerics.histogram import BINS, Statistics, no_runs
from ampmon.transport import HttpTransport
from benchmarks.server import serving


UPDATES = 100_000
SAMPLES = 2_000
PARAMETERS = 148
BATCH = 1_000
SAMPLED_BATCH = 50
REPEATS = 7


def measure(directory: Path) -> list[dict[str, Any]]:
    """A row for each figure. Takes about half a minute. Fills ``directory``."""
    plain, sampled = _Run(_plain), _Run(_sampled)
    batches = plain.batches(UPDATES, BATCH)
    sampled_batches = sampled.batches(SAMPLES, SAMPLED_BATCH)
    with serving(directory) as (url, token):
        rows = [
            _row("updates taken, batches of 1000", UPDATES / _send(url, token, batches), "per s"),
            _row("the same again: a resend", UPDATES / _send(url, token, batches), "per s"),
            _row(
                f"sampled updates of {PARAMETERS} parameters, batches of 50",
                SAMPLES / _send(url, token, sampled_batches),
                "per s",
            ),
        ]
        for run, count in ((plain, UPDATES), (sampled, SAMPLES)):
            for path in (
                "figures/scale",
                "figures/skips",
                "figures/underflow",
                "figures/exponents",
            ):
                taken = _time_get(f"{url}/api/v1/runs/{run.run_id}/{path}", token)
                rows.append(_row(f"{path} of {count} updates", 1000 * taken, "ms"))
        taken = _time_get(f"{url}/api/v1/runs/{plain.run_id}/updates?limit={UPDATES}", token)
        rows.append(_row(f"all columns of {UPDATES} updates", 1000 * taken, "ms"))
    size = (directory / "server" / "ampmon.db").stat().st_size
    rows.append(_row("database", size / 2**20, "MiB"))
    return rows


def _row(what: str, value: float, unit: str) -> dict[str, Any]:
    return {"what": what, "value": float(f"{value:.3g}"), "unit": unit}


class _Run:
    """A run that encodes its batches before the clock starts, so only the server is measured."""

    def __init__(self, record: Callable[[int], wire.Update]) -> None:
        self.run_id, self._attempt_id, self._record = uuid4(), uuid4(), record

    def batches(self, count: int, size: int) -> list[tuple[bytes, int]]:
        return [
            (wire.encode(self._batch([self._record(first + n) for n in range(size)])), size)
            for first in range(0, count, size)
        ]

    def _batch(self, records: Sequence[wire.Update]) -> wire.Batch:
        return wire.Batch(
            schema_version=wire.SCHEMA_VERSION,
            run_id=self.run_id,
            attempt_id=self._attempt_id,
            headers=_headers(self.run_id, self._attempt_id),
            records=tuple(records),
        )


def _headers(run_id: UUID, attempt_id: UUID) -> tuple[wire.Header, ...]:
    parameters = tuple(
        wire.Parameter(f"blocks.{n}.weight", (768, 768), "float32") for n in range(PARAMETERS)
    )
    return (
        wire.AttemptHeader(
            run_id=run_id,
            attempt_id=attempt_id,
            project="benchmark",
            name="ingest",
            owner="benchmark",
            started=time.time_ns() // 1000,
        ),
        wire.StreamHeader(
            stream="scaler", scaler="GradScaler", device="cuda", parameters=parameters
        ),
    )


def _plain(ordinal: int) -> wire.Update:
    skipped = ordinal % 500 == 499
    optimizer = wire.OptimizerStep(optimizer="AdamW", path="unscaled", skipped=skipped)
    return wire.Update(
        stream="scaler",
        seq=ordinal,
        ordinal=ordinal,
        time=1_790_000_000_000_000 + 50_000 * ordinal,
        scale=65536.0,
        scale_after=32768.0 if skipped else 65536.0,
        growth_tracker=ordinal % 500,
        event="backoff" if skipped else "steady",
        optimizers=(optimizer,),
        duration=50_123.5,
        cost=11.25,
    )


def _sampled(ordinal: int) -> wire.Update:
    random = np.random.default_rng(ordinal)
    shares = np.exp(-(((np.arange(BINS) - np.linspace(18, 30, PARAMETERS)[:, None]) / 2.2) ** 2))
    histogram = random.multinomial(768 * 768, shares / shares.sum(1, keepdims=True))
    none, all_ = np.zeros(PARAMETERS, np.int64), np.full(PARAMETERS, 768 * 768, np.int64)
    statistics = Statistics(
        parameters=np.arange(PARAMETERS, dtype=np.int32),
        looked=all_,
        zeros=none,
        on_grid=all_,
        inf=none,
        nan=none,
        amax=random.random(PARAMETERS, np.float32).astype(np.float64),
        sum_squares=random.random(PARAMETERS),
        histogram=histogram,
        run_squares=no_runs(PARAMETERS),
    )
    return msgspec.structs.replace(_plain(ordinal), gradients=statistics.to_wire())


def _send(url: str, token: str, batches: Sequence[tuple[bytes, int]]) -> float:
    """Send batches one after another, compressed as the sender does. Return the seconds until all are acknowledged."""
    transport = HttpTransport(url, token=token)
    began = time.perf_counter()
    for body, records in batches:
        transport.send(body, records)
    taken = time.perf_counter() - began
    transport.close()
    return taken


def _time_get(url: str, token: str) -> float:
    times = []
    with urllib3.PoolManager(retries=False) as http:
        for _ in range(REPEATS):
            began = time.perf_counter()
            answer = http.request("GET", url, headers={"Authorization": f"Bearer {token}"})
            times.append(time.perf_counter() - began)
            assert answer.status == 200, answer.data[:500]
    return median(times)
