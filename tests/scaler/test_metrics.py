"""`metrics()` returns the newest known values as a flat dict, for the user's own tracker, without a sync."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD

import ampmon
from ampmon import wire
from ampmon.client.monitor_view import MonitorProperties, shares
from ampmon.numerics.histogram import classify, headroom_bits
from older_torch import named
from probe.test_no_sync import NoSync
from recording import recording


KEYS = {
    "amp/scale",
    "amp/skipped_total",
    "amp/skip_rate",
    "amp/subnormal_share",
    "amp/zero_share",
    "amp/headroom_bits",
    "amp/overhead",
}


def train(scaler: torch.amp.GradScaler, updates: int, overflows: set[int] = frozenset()) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = SGD(named(model.named_parameters()), lr=1e-3)
    for update in range(updates):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(4, 8)).float().square().mean()
        scaler.scale(loss).backward()
        if update in overflows:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_metrics_raise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours leaves the metrics empty and is counted, and the training goes on."""
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    train(scaler, 1)
    monkeypatch.setattr(MonitorProperties, "metrics", lambda _: 1 / 0)
    with pytest.warns(ampmon.AmpmonWarning, match=r"ampmon\.metrics"):
        assert ampmon.metrics() == {}
    assert scaler.monitor.errors == 1


def test_the_newest_values_of_a_scaler(data_directory: Path) -> None:
    """The values are those of the ledger and of the newest sample."""
    scaler = ampmon.GradScaler("cpu", init_scale=256.0, monitor=ampmon.Config(every=1))
    assert "amp/subnormal_share" not in scaler.monitor.metrics()
    train(scaler, 10, overflows={2, 5})
    values = scaler.monitor.metrics()
    assert ampmon.metrics() == values
    recorded = recording(data_directory)
    sample = recorded.statistics(9)
    on = sample.grid_mask & (sample.looked > 0)
    classes = classify(sample.histogram[on], sample.zeros[on], sample.inf[on] + sample.nan[on])
    total = classes.total.sum()
    assert set(values) == KEYS
    assert values["amp/scale"] == recorded.updates[-1].scale_after == 64.0
    assert (values["amp/skipped_total"], values["amp/skip_rate"]) == (2, 0.2)
    assert values["amp/subnormal_share"] == pytest.approx(classes.subnormal.sum() / total)
    assert values["amp/zero_share"] == pytest.approx(classes.zero.sum() / total)
    assert values["amp/headroom_bits"] == headroom_bits(sample.amax[on].max())
    assert values["amp/overhead"] == scaler.monitor.overhead


def test_a_sampled_overflow_has_no_headroom_to_log() -> None:
    """Values that are not finite are left out, because trackers draw them badly."""
    scaler = ampmon.GradScaler("cpu", init_scale=256.0, monitor=ampmon.Config(every=1))
    train(scaler, 3, overflows={2})
    assert set(scaler.monitor.metrics()) == KEYS - {"amp/headroom_bits"}


def test_a_second_scaler_has_a_name_of_its_own() -> None:
    """The first scaler's keys stay unchanged; another scaler's keys contain its stream's name."""
    first = ampmon.GradScaler("cpu", init_scale=2.0)
    second = ampmon.GradScaler("cpu", init_scale=4.0, name="critic")
    train(first, 1)
    train(second, 2)
    values = ampmon.metrics()
    assert (values["amp/scale"], values["amp/critic/scale"]) == (2.0, 4.0)


def test_a_scaler_that_is_gone_has_no_values() -> None:
    """Values of a scaler that was deleted are left out, and those of the others stay."""
    first = ampmon.GradScaler("cpu", init_scale=2.0)
    second = ampmon.GradScaler("cpu", init_scale=4.0, name="critic")
    train(first, 1)
    del second
    gc.collect()
    assert ampmon.metrics()["amp/scale"] == 2.0


def test_without_a_run_there_is_nothing_to_log() -> None:
    """Without a run the dict is empty."""
    assert {"loss": 1.0} | ampmon.metrics() == {"loss": 1.0}


def test_a_part_of_each_parameter_stands_for_all_of_it() -> None:
    """If some elements of each parameter were measured, parameters count by their full size."""
    small, large = (
        wire.Parameter("small", (16,), "float16"),
        wire.Parameter("large", (16, 64), "float16"),
    )
    histogram = np.zeros((2, 64), np.int64)
    histogram[0, 20], histogram[1, 40] = 16, 16  # 2^-20: subnormal; 1: normal
    ones, counts = np.ones(2), np.full(2, 16, "<i8").tobytes()
    none = np.zeros(2, "<i8").tobytes()
    sample = wire.Gradients(
        parameters=np.arange(2, dtype="<i4").tobytes(),
        looked=counts,
        zeros=none,
        on_grid=counts,
        inf=none,
        nan=none,
        amax=ones.astype("<f8").tobytes(),
        sum_squares=ones.astype("<f8").tobytes(),
        histogram=histogram.astype("<i8").tobytes(),
    )
    assert shares(sample, [small, large], 16)["amp/subnormal_share"] == pytest.approx(1 / 65)


def test_reading_them_reads_no_tensor() -> None:
    """Reading the metrics calls no operator that waits for a device."""
    scaler = ampmon.GradScaler("cpu", init_scale=256.0, monitor=ampmon.Config(every=1))
    train(scaler, 2)
    with NoSync():
        assert ampmon.metrics()
