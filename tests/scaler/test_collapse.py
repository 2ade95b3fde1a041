"""What torch's scaler does unnoticed, in numbers, and what ampmon records of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.optim import SGD

import ampmon
from recording import recording


pytestmark = pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")


def gradient(model: torch.nn.Linear, scaler: torch.amp.GradScaler) -> torch.Tensor:
    """Return the gradient of a scaled loss."""
    scaler.scale(model(torch.ones(1, model.in_features)).sum()).backward()
    assert model.weight.grad is not None
    return model.weight.grad


def test_a_collapse_in_numbers(data_directory: Path) -> None:
    """After 144 skips from 65536 1/scale is infinite; at 166 the scale is 0, and a clean batch makes NaN weights."""
    model = torch.nn.Linear(4, 4, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu")
    for update in range(167):
        scaled = gradient(model, scaler)
        if update < 166:
            scaled.fill_(math.nan)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    updates = recording(data_directory).updates
    infinite = [math.isinf(torch.tensor(1 / update.scale_after).item()) for update in updates[:165]]
    assert infinite.index(True) + 1 == 144
    assert updates[143].scale_after == 2.0**-128
    assert [update.scale_after for update in updates].index(0.0) + 1 == 166
    assert not updates[166].optimizers[0].skipped
    assert (updates[166].scale_after, updates[166].growth_tracker) == (0.0, 1)
    assert model.weight.isnan().all()


def test_a_dead_scale_destroys_the_weights(data_directory: Path) -> None:
    """At scale 2^-130 a clean step makes the weights infinite, is not skipped, and is recorded as dead."""
    model = torch.nn.Linear(4, 4, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0**-130)
    gradient(model, scaler)
    scaler.step(optimizer)
    scaler.update()
    (update,) = recording(data_directory).updates
    assert (update.event, update.optimizers[0].skipped) == ("dead", False)
    assert model.weight.isinf().all()


def spoilt(*, fused: bool) -> bool:
    """Return whether weights are not finite after a first step that overflowed and a clean second one."""
    model = torch.nn.Linear(64, 64, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
    scaler = ampmon.GradScaler("cpu", init_scale=1024.0)
    for first in (True, False):
        scaled = gradient(model, scaler)
        if first:
            scaled[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return not bool(model.weight.isfinite().all())


@pytest.fixture
def dirty_memory() -> Iterator[None]:
    """Have torch fill new memory with NaN, which it may hold anyway."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("dirty_memory")
def test_fused_sgd_makes_weights_of_leftovers(data_directory: Path) -> None:
    """What memory held before comes into the weights with fused SGD, not with unfused; the fused one has the lint."""
    assert not spoilt(fused=False)
    assert spoilt(fused=True)
    lints = recording(data_directory).events("lint")
    assert [lint.detail["rule"] for lint in lints] == ["fused_sgd"]
