"""The stage that trains GPT-2 small in turns with the stock scaler: see whole_step. Records are not sent.

It trains with torch's default AdamW, whose step waits for the device, and with the fused one, whose step does not.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import ampmon
from benchmarks import networks, whole_step
from benchmarks.gpu.stage_results import StageResults
from benchmarks.whole_step import AGAIN, MONITORED, SAMPLED, STOCK, UNSAMPLED, Setting


OPTIMIZERS = {
    "AdamW": partial(torch.optim.AdamW, lr=1e-4),
    "fused AdamW": partial(torch.optim.AdamW, lr=1e-4, fused=True),
}
BARS = {"GPT-2, default settings": MONITORED, "GPT-2, no update sampled": UNSAMPLED}
SETTING = Setting(
    "GPT-2 124M, 8 x 1024 tokens",
    "cuda",
    networks.gpt2,
    networks.tokens,
    kinds=(STOCK, MONITORED, AGAIN, UNSAMPLED, SAMPLED),
    block=4,
)
STARTING_S, TURNS_S = 25.0, 5.0
"""Seconds assumed for the first optimizer's models and other one-time work, and the least time for turns."""


def run(results: StageResults, place: str, limit_s: float, setting: Setting = SETTING) -> None:
    """A row for each kind of training and optimizer."""
    until = time.monotonic() + limit_s * 0.95
    with tempfile.TemporaryDirectory() as folder:
        ampmon.init("make gpu", "training", dir=folder, mode="offline")
        all_rows: list[dict[str, Any]] = []
        starting_s = STARTING_S if place == "cuda" else 0.0
        for left, (name, optimizer) in zip((2, 1), OPTIMIZERS.items(), strict=True):
            began = time.monotonic()
            turns_s = max((until - began) / left - starting_s, TURNS_S if place == "cuda" else 0.0)
            title = f"{setting.title}, {name}"
            of_this = replace(setting, title=title, device=place, optimizer=optimizer)
            rows = whole_step.compare(replace(of_this, limit_s=turns_s))
            starting_s = time.monotonic() - began - turns_s
            results.rows("training", all_rows := [*all_rows, *rows])
            _report(results, {row["kind"]: row for row in rows}, name)
        ampmon.finish()


def _report(results: StageResults, rows: dict[str, dict[str, Any]], optimizer: str) -> None:
    for bar, kind in BARS.items():
        row = rows[kind]
        note = f"{row['low']} to {row['high']}; tells {row['overhead']} of itself; stock again "
        note += f"{rows[AGAIN]['ratio']}"
        if row["holds"] == "not told apart":
            note += "; not told apart"
        results.bar(f"{bar}, {optimizer}", row["holds"] == "yes", row["ratio"], row["bar"], note)
