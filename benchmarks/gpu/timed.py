"""The stage that times the kernels: see gpu_kernels."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import torch

from benchmarks import gpu_kernels
from benchmarks.gpu.stage_results import StageResults


ROUNDS = 40
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
BARS = {
    gpu_kernels.STATISTICS: "statistics beside one read",
    gpu_kernels.FUSED: "statistics and unscaling beside torch's",
}


def run(results: StageResults, place: str, limit_s: float) -> None:
    """Rows for each dtype and kind of data. A bar applies to the worst kind."""
    until = time.monotonic() + limit_s * 0.9
    clock = gpu_kernels.on_device if place == "cuda" else gpu_kernels.on_host
    rows: list[dict[str, Any]] = []
    for data, dtype in product(gpu_kernels.DATA, NAMES):
        if time.monotonic() > until:
            results.fact("kernels", f"no time was left for {data}, {NAMES[dtype]}")
            continue
        gradients = gpu_kernels.made(dtype, data, place)
        rows += gpu_kernels.compare(gradients, clock, ROUNDS if place == "cuda" else 2, data)
        results.rows("kernels", rows)
        _report(results, rows, dtype)


def _report(results: StageResults, rows: list[dict[str, Any]], dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    for what, bar in BARS.items():
        measured = [row for row in rows if (row["what"], row["dtype"]) == (what, name)]
        worst = max(
            (row for row in measured if row["ratio"] is not None),
            key=lambda row: row["ratio"],
            default=None,
        )
        if worst is None:
            continue
        note = f"{worst['low']} to {worst['high']}, {worst['data']}"
        if worst["holds"] == "not told apart":
            note += "; not told apart"
        named = f"{bar}, {NAMES[dtype]}"
        results.bar(named, worst["holds"] == "yes", worst["ratio"], worst["bar"], note)
