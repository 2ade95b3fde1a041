"""torch.compile and CUDA graphs leave the monitor out of the steps that they record (T19)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD

import ampmon
from ampmon.probe import accelerator
from ampmon.probe.pending import Pending
from ampmon.probe.ring import Readback
from recording import recording
from scaler.test_ledger import iterate


STEPS = 5


@pytest.fixture
def compiler() -> Iterator[Any]:
    """torch.compile's front end, with nothing compiled."""
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    yield dynamo
    dynamo.reset()


def train_compiled(
    scaler: torch.amp.GradScaler, dynamo: Any, passes: int
) -> tuple[list[Any], int, int]:
    """Return weights and scaler state after a compiled loop, its number of graphs, and of graph breaks."""
    dynamo.reset()
    dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(16, 8)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.zero_grad()
        for _ in range(passes):
            with torch.autocast("cpu", torch.float16):
                loss = model(inputs).float().square().mean()
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(STEPS):
        step()
    counters = dynamo.utils.counters
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return [*weights, scaler.state_dict()], graphs, breaks


@pytest.mark.parametrize("passes", [1, pytest.param(2, marks=pytest.mark.rare)])
@pytest.mark.filterwarnings("default")  # the compiler fails if warnings are errors
def test_a_compiled_step_is_cut_nowhere_else(
    data_directory: Path, compiler: Any, passes: int
) -> None:
    """A compiled step has the stock scaler's graphs, breaks and weights, all its records, and no fault of the loop."""
    stock = train_compiled(torch.amp.GradScaler("cpu", growth_interval=2), compiler, passes)
    monitored = train_compiled(ampmon.GradScaler("cpu", growth_interval=2), compiler, passes)
    assert monitored[1:] == stock[1:]
    assert stock[1] > 0
    *weights, state = monitored[0]
    assert all(map(torch.equal, weights, stock[0]))
    assert state == stock[0][-1]
    recorded = recording(data_directory)
    assert len(recorded.updates) == STEPS
    assert recorded.events("lint") == []


def test_captured_updates_are_counted(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a stream is capturing, updates are counted in one event but not recorded; later updates are recorded."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=8.0)
    iterate(scaler, model, optimizer)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert accelerator.capturing()
        iterate(scaler, model, optimizer)
        iterate(scaler, model, optimizer)
    iterate(scaler, model, optimizer)
    assert scaler.monitor is not None
    assert (scaler.monitor.captured, scaler.monitor.errors) == (2, 0)
    recorded = recording(data_directory)
    assert [update.ordinal for update in recorded.updates] == [0, 1]
    assert [event.ordinal for event in recorded.events("captured")] == [1]


def test_after_a_capture_each_scale_is_read(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay moves the scale without a call or a version of its tensor. The next record has the new scale."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=8.0, monitor=ampmon.Config(every=10**6))
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        iterate(scaler, model, optimizer)
    scales = []
    for _ in range(40):
        assert scaler._scale is not None
        scaler._scale.data.mul_(2.0)  # has no version
        scales.append(scaler.get_scale())
        iterate(scaler, model, optimizer)
    assert [update.scale for update in recording(data_directory).updates] == scales


def test_what_is_under_way_outlives_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a capture an iteration keeps its pinned memory, and no gradient that it set aside is touched."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=8.0)
    assert scaler.monitor is not None
    monitor, stale = scaler.monitor, torch.ones(3)
    monitor._measurer.set_aside = [(0, stale)]
    copy = Readback(torch.ones(1))
    monitor._iteration.samples.append(Pending(copy.result, copy))
    held = weakref.ref(copy._tensor)
    del copy
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        iterate(scaler, model, optimizer)
        gc.collect()
        assert held() is not None
    iterate(scaler, model, optimizer)
    gc.collect()
    assert held() is None
    assert stale.tolist() == [1.0] * 3


def test_nothing_is_logged_into_a_capture(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ampmon.log` in a captured step leaves the device alone and is no error; it logs again afterwards."""
    ampmon.init()
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        ampmon.log({"loss": torch.ones((), device="meta")})
    ampmon.log({"loss": 2.0})
    recorded = recording(data_directory)
    assert [each.values for each in recorded.scalars] == [{"loss": 2.0}]
    assert not recorded.events("error")


@pytest.mark.gpu
def test_a_capture_is_not_broken(data_directory: Path) -> None:
    """A step with a fused optimizer is captured into a CUDA graph under the monitor, and trains when replayed."""
    parameter = torch.ones(64, device="cuda", requires_grad=True)
    optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=True, capturable=True)
    scaler = ampmon.GradScaler("cuda", init_scale=8.0)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        scaler.scale((parameter.half() * 0.5).float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    before = parameter.detach().clone()
    graph.replay()
    assert not torch.equal(parameter, before)
    assert scaler.monitor is not None
    assert (scaler.monitor.captured, scaler.monitor.errors) == (1, 0)
    assert len(recording(data_directory).updates) == 3
