"""When the monitor samples under a budget, and the overhead it reports, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD

import ampmon
from ampmon import wire
from ampmon.client.measurer import Measurer
from ampmon.probe.gpu import loading
from ampmon.spool import SpoolWriter
from doubles import ManualClock
from recording import recording
from waiting import wait_for


class Loop:
    """Trains a small network. Updates and the monitor's work on them take milliseconds of ``clock``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock(0.0)
        self.sample_ms = self.bare_ms = 0.0
        """The monitor's time on an update with a sample, and on one without."""
        measure, write = Measurer.before_unscale, SpoolWriter.append

        def measured(
            measurer: Any, optimizer: Any, iteration: Any, *given: Any, **named: Any
        ) -> None:
            measure(measurer, optimizer, iteration, *given, **named)
            if iteration.sampling:
                self.clock.advance((self.sample_ms - self.bare_ms) / 1000)

        def written(spool: Any, payload: bytes, **key: Any) -> bool:
            if not key and isinstance(wire.decode(payload), wire.Update):
                self.clock.advance(self.bare_ms / 1000)
            return write(spool, payload, **key)

        monkeypatch.setattr(Measurer, "before_unscale", measured)
        monkeypatch.setattr(SpoolWriter, "append", written)

    def train(
        self, updates: int, *, config: ampmon.Config, update_ms: float, **options: Any
    ) -> Any:
        """Train for this many updates; return the monitor."""

        def rest() -> None:
            self.clock.advance(update_ms / 1000)

        return train(updates, config=config, rest=rest, clock=self.clock, **options)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def train(
    updates: int,
    *,
    config: ampmon.Config,
    rest: Callable[[], object] = lambda: None,
    clock: ManualClock | None = None,
    device: str = "cpu",
    width: int = 16,
    kept: list[object] | None = None,
    **options: Any,
) -> Any:
    """Train a small network, calling ``rest`` after each update; return the monitor. The optimizer goes to ``kept``."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, 4))
    model.to(device)
    optimizer = SGD(model.parameters(), lr=1e-3)
    if kept is not None:
        kept.append(optimizer)
    scaler = ampmon.GradScaler(
        device, **{"init_scale": 256.0, **options}, model=model, monitor=config
    )
    assert scaler.monitor is not None
    if clock is not None:
        scaler.monitor._account.clock = lambda: round(clock() * 1e9)
    inputs = torch.randn(8, width, device=device)
    for _ in range(updates):
        optimizer.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        rest()
    return scaler.monitor


def test_a_small_model_on_a_slow_loop_is_sampled_every_update(
    data_directory: Path, loop: Loop
) -> None:
    """If updates are far apart every one is sampled, each record says so, and the budget is kept."""
    loop.sample_ms = 1.0
    monitor = loop.train(12, config=ampmon.Config(budget=0.1), update_ms=99.0)
    assert (monitor.samples, monitor.interval, monitor.over_budget) == (12, 1, False)
    assert monitor.overhead == pytest.approx(0.01)
    recorded = recording(data_directory)
    assert recorded.header().budget == 0.1
    assert {(update.interval, update.over_budget) for update in recorded.updates} == {(1, False)}


def test_steps_of_a_millisecond_are_not_slowed(loop: Loop) -> None:
    """With 1 % of steps of 1 ms, samples are as rare as allowed, and the excess of the other costs is reported."""
    loop.sample_ms, loop.bare_ms = 1.02, 0.02
    monitor = loop.train(1200, config=ampmon.Config(), update_ms=1.0)
    assert monitor.interval == 128
    assert monitor.samples <= 20
    assert monitor.over_budget
    spent_ms = 0.02 * 1199 + 1.0 * (monitor.samples - 1)  # the first update has no duration
    assert monitor.overhead == pytest.approx(spent_ms / (1199 + spent_ms), rel=1e-3)
    assert "budget 1%, exceeded" in repr(monitor)


def test_a_budget_that_can_be_kept_is_kept(data_directory: Path, loop: Loop) -> None:
    """With 30 % of short steps, the interval settles between its limits, and the overhead is within the budget."""
    loop.sample_ms, loop.bare_ms = 0.9, 0.1
    monitor = loop.train(600, config=ampmon.Config(budget=0.3), update_ms=1.0)
    assert not monitor.over_budget
    assert monitor.interval == 4
    assert 0.2 < monitor.overhead < 0.3
    last = [update for update in recording(data_directory).updates if update.gradients][-1]
    assert (last.interval, last.over_budget) == (monitor.interval, False)


def test_a_scale_that_grows_at_every_update_is_reported(data_directory: Path, loop: Loop) -> None:
    """With growth_interval=1 each update has its sample, and the budget is reported as exceeded."""
    loop.sample_ms = 1.0
    more = {"init_scale": 2.0**-40, "growth_interval": 1}
    monitor = loop.train(80, config=ampmon.Config(), update_ms=1.0, **more)
    assert monitor.samples == 80
    assert monitor.over_budget
    assert [update.over_budget for update in recording(data_directory).updates][-1]


def test_a_fixed_interval_has_no_budget(data_directory: Path) -> None:
    """`Config(every=3)` reports its interval, and no budget."""
    monitor = train(10, config=ampmon.Config(every=3))
    assert (monitor.interval, monitor.samples, monitor.over_budget) == (3, 4, False)
    assert "budget" not in repr(monitor)
    recorded = recording(data_directory)
    assert recorded.header().budget is None
    assert [update.interval for update in recorded.updates[:4]] == [3, None, None, 3]


@pytest.mark.gpu
def test_device_time_is_reported_without_waiting() -> None:
    """On a GPU events time the samples, and torch's own unscaling in updates that are not sampled."""
    pytest.importorskip("triton")
    train(5, config=ampmon.Config(every=1), device="cuda")
    wait_for(lambda: not loading.compiling())
    kept: list[object] = []
    monitor = train(100, config=ampmon.Config(budget=0.5), device="cuda", width=2048, kept=kept)
    assert monitor.errors == 0
    timer, baselines = monitor._measurer.timer, monitor._measurer._baselines
    assert timer._usable
    torch.cuda.synchronize()
    timer.finished()
    assert not timer._awaited
    (baseline,) = baselines.values()
    assert baseline.begun >= 3
    assert baseline.us() > 0
