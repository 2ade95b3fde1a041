"""A trainer's clock jumps by hours: order follows seq, durations use the monotonic clock, and nothing is lost."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import ampmon
from ampmon.client import current_run
from ampmon.transport import HttpTransport
from ampmon_server.store.updates.updates import PAGES
from draining import drain
from recording import recording
from threaded_server import ThreadedServer
from waiting import DEADLINE_S


HOUR_NS = 3600 * 10**9
UPDATES = 24


def test_clock_that_jumps_changes_no_order_and_no_duration(
    tmp_path: Path, data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that jumps by hours at every reading, steps stay in order and no duration exceeds the real one."""
    real, jumps = time.time_ns, itertools.cycle((0, 5, -7, 1, -2))
    with monkeypatch.context() as clocks:
        clocks.setattr(time, "time_ns", lambda: real() + next(jumps) * HOUR_NS)
        clocks.setattr(time, "time", lambda: time.time_ns() / 1e9)
        began = time.monotonic()
        train()
        took_us = (time.monotonic() - began) * 1e6

    recorded = recording(data_directory)
    times = [update.time for update in recorded.updates]
    assert times != sorted(times)
    assert [update.ordinal for update in recorded.updates] == list(range(UPDATES))
    durations = [update.duration for update in recorded.updates[1:]]
    assert all(duration is not None and 0 < duration <= took_us for duration in durations)
    assert stored(tmp_path / "server", data_directory) == [
        (step, step == 11) for step in range(UPDATES)
    ]


def train() -> None:
    ampmon.init("tests", "clocks")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0, monitor=ampmon.Config(every=6))
    for update in range(UPDATES):
        scaler.scale(model(torch.ones(4, 8)).sum()).backward()
        if update == 11:
            assert model.bias.grad is not None
            model.bias.grad[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    current_run.finish(deadline_s=DEADLINE_S)


def stored(directory: Path, spooled: Path) -> list[tuple[Any, ...]]:
    """The steps that a real server stores, each with whether it was skipped."""
    server = ThreadedServer(directory)
    try:
        url, token_file = server.url, server.token_file
        report = drain(
            spooled, lambda _: HttpTransport(url, token_file=token_file), modes=("offline",)
        )
        assert (report.problems, report.rejected) == ({}, 0)
        return [
            (step, bool(skipped))
            for *_, rows in server.pages(PAGES)
            for step, skipped in rows[["step", "skipped"]].tolist()
        ]
    finally:
        server.close()
