"""The host time that monitoring adds to an update on a GPU, with gradients so small that the device is hardly busy.

Scalers take turns as in host_cost, and each iteration starts on an idle device. Records are written but not sent. A
plain optimizer's step waits for the device, with any scaler, and a fused one's does not.
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import product
from typing import Any

import torch

import ampmon
from ampmon.probe.gpu import loading
from benchmarks import host_cost
from benchmarks.gpu.stage_results import StageResults


STALL_MS, ADDED_US = 5.0, 40.0
PAIRS = 1000
FIRST_S = 15.0
"""The most seconds to watch the first updates, while the kernels are compiled."""
AFTER = 50
"""The updates to watch once the kernels are compiled."""


def run(results: StageResults, place: str, limit_s: float) -> None:
    """Measure the stall first, before this process launches any kernel."""
    until = time.monotonic() + limit_s * 0.9
    device = place
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/triton"
        ampmon.init("make gpu", "host", dir=folder, mode="offline")
        stall, note = stall_ms(device)
        results.bar(
            "stall of the first update, ms", stall <= STALL_MS, round(stall, 2), STALL_MS, note
        )
        rows: list[dict[str, Any]] = []
        for fused, tensors in product((False, True), host_cost.TENSORS):
            if time.monotonic() < until:
                rows.append(_compared(results, device, tensors, fused=fused))
                results.rows("host", rows)
        ampmon.finish()


def stall_ms(device: str) -> tuple[float, str]:
    """How far the slowest of the first sampled updates is above their median, in ms, and a note on which it was."""
    stock = host_cost.iteration(torch.amp.GradScaler, 6, device)
    for _ in range(20):
        stock()
    iterate = host_cost.iteration(
        lambda *args, **kwargs: ampmon.GradScaler(*args, **kwargs, monitor=ampmon.Config(every=1)),
        6,
        device,
    )
    times: list[float] = []
    start = time.monotonic()
    after = 0
    while after < AFTER and time.monotonic() < start + FIRST_S:
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        iterate()
        times.append(1000 * (time.perf_counter() - began))
        time.sleep(0.002)
        after = 0 if loading.compiling() else after + 1
    stall = max(times) - sorted(times)[len(times) // 2]
    note = f"number {times.index(max(times)) + 1} of {len(times)}, {AFTER} of them with kernels"
    return stall, note


def _compared(results: StageResults, device: str, tensors: int, *, fused: bool) -> dict[str, Any]:
    pairs = PAIRS if device == "cuda" else 5
    times = host_cost.compare(tensors, pairs, swept=False, device=device, fused=fused or None)
    row: dict[str, Any] = {"optimizer": "fused" if fused else "plain", "tensors": tensors}
    row |= host_cost.summarise(times)
    if not fused:
        added = row["monitored_added_p50_us"]
        bar = f"added to an unsampled update of {tensors} tensors, us"
        results.bar(bar, added <= ADDED_US, added, ADDED_US, f"stock {row['stock_p50_us']}")
    return row
