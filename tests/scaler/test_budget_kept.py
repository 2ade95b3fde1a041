"""Real training under a budget: what it decides, and what the monitor then takes by its own account."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD

import ampmon
from recording import recording


def train(
    updates: int,
    *,
    config: ampmon.Config,
    rest_s: float = 0.0,
    device: str = "cpu",
    width: int = 16,
    **options: Any,
) -> Any:
    """The monitor of a small network that was trained, resting after each update as a slow loop does."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 4))
    model.to(device)
    optimizer = SGD(model.parameters(), lr=1e-3)
    scaler = ampmon.GradScaler(
        device, **{"init_scale": 256.0, **options}, model=model, monitor=config
    )
    inputs = torch.randn(8, width, device=device)
    for _ in range(updates):
        optimizer.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        time.sleep(rest_s)
    assert scaler.monitor is not None
    return scaler.monitor


def test_a_small_model_on_a_slow_loop_is_sampled_every_update(data_directory: Path) -> None:
    """Where updates are far apart every one is sampled, each record says so, and the budget is kept."""
    monitor = train(12, config=ampmon.Config(budget=0.1), rest_s=0.1)
    assert (monitor.samples, monitor.interval, monitor.over_budget) == (12, 1, False)
    assert 0 < monitor.overhead < 0.1
    recorded = recording(data_directory)
    assert recorded.header().budget == 0.1
    assert {(update.interval, update.over_budget) for update in recorded.updates} == {(1, False)}


def test_steps_of_a_millisecond_are_not_slowed(data_directory: Path) -> None:
    """With 1 % of such steps, samples are as rare as they may be; what the rest costs by itself is not hidden."""
    often = train(150, config=ampmon.Config(every=1))
    rarely = train(1200, config=ampmon.Config())
    assert rarely.interval == 128
    assert rarely.samples <= 20
    assert rarely.over_budget
    assert rarely.overhead < 0.6 * often.overhead
    assert "budget 1%, exceeded" in repr(rarely)


def test_a_budget_that_can_be_kept_is_kept(data_directory: Path) -> None:
    """Given 30 % of short steps, the interval settles between the ends, and what was spent is near the budget."""
    monitor = train(1500, config=ampmon.Config(budget=0.3))
    assert not monitor.over_budget
    assert 2 <= monitor.interval <= 64
    assert monitor.overhead < 0.45
    last = [update for update in recording(data_directory).updates if update.gradients][-1]
    assert (last.interval, last.over_budget) == (monitor.interval, False)


def test_a_scale_that_grows_at_every_update_is_told(data_directory: Path) -> None:
    """With growth_interval=1 each update has its sample, as promised, and the budget is said to be exceeded."""
    monitor = train(80, config=ampmon.Config(), init_scale=2.0**-40, growth_interval=1)
    assert monitor.samples == 80
    assert monitor.over_budget
    assert [update.over_budget for update in recording(data_directory).updates][-1]


def test_a_fixed_interval_has_no_budget(data_directory: Path) -> None:
    """`Config(every=3)` tells its interval, and neither a budget nor that one is exceeded."""
    monitor = train(10, config=ampmon.Config(every=3))
    assert (monitor.interval, monitor.samples, monitor.over_budget) == (3, 4, False)
    assert "budget" not in repr(monitor)
    recorded = recording(data_directory)
    assert recorded.header().budget is None
    assert [update.interval for update in recorded.updates[:4]] == [3, None, None, 3]


@pytest.mark.gpu
def test_device_time_is_told_without_waiting(data_directory: Path) -> None:
    """On a GPU samples are timed by events, and torch's own unscaling in updates that are not sampled."""
    pytest.importorskip("triton")
    train(5, config=ampmon.Config(every=1), device="cuda")
    monitor = train(100, config=ampmon.Config(budget=0.5), device="cuda", width=2048)
    assert monitor.errors == 0
    timer, baselines = monitor._measurer.timer, monitor._measurer._baselines
    assert timer._usable
    torch.cuda.synchronize()
    timer.finished()
    assert not timer._awaited
    (baseline,) = baselines.values()
    assert baseline.begun >= 3
    assert baseline.us() > 0
