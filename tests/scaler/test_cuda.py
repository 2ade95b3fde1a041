"""On a GPU the training thread waits for nothing new, and training is bit for bit the same.

Runs on CUDA, and on the emulated device, started by device/test_device.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import AdamW, Optimizer

import ampmon
from device.emulated import NAME, device
from device.place import PLACE
from recording import recording
from scaler.test_parity import bits


EMULATED = PLACE == NAME
DEVICE = PLACE if EMULATED else "cuda"
on_gpu = pytest.mark.gpu
pytestmark = [] if EMULATED else on_gpu

WARM_UP, STEPS = 5, 20


def network() -> torch.nn.Module:
    """Return a network with parameters of several sizes, the same each time."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.Linear(256, 8)]
    return torch.nn.Sequential(*layers).to(DEVICE)


def iterate(scaler: torch.amp.GradScaler, model: torch.nn.Module, optimizer: Optimizer) -> None:
    """Run one training step in fp16."""
    optimizer.zero_grad()
    with torch.autocast(DEVICE, dtype=torch.float16):
        loss = model(torch.ones(32, 256, device=DEVICE)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@contextmanager
def no_waits() -> Iterator[None]:
    """Raise on every wait for the device."""
    if EMULATED:
        with device().strict():
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("every", [1, 3])
def test_the_fused_route_has_no_sync(data_directory: Path, every: int) -> None:
    """With a fused optimizer a whole step, sampled or not, never makes the host wait."""
    model = network()
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = ampmon.GradScaler(DEVICE, monitor=ampmon.Config(every=every))
    for _ in range(WARM_UP):
        iterate(scaler, model, optimizer)
    with no_waits():
        for _ in range(STEPS):
            iterate(scaler, model, optimizer)
    assert scaler.monitor is not None
    assert scaler.monitor.errors == 0
    recorded = recording(data_directory)
    assert len(recorded.updates) == WARM_UP + STEPS
    assert sum(update.gradients is not None for update in recorded.updates) >= STEPS // every


def syncs(scaler: torch.amp.GradScaler) -> tuple[int, int]:
    """Return how often the plain route waits in twenty steps, by torch's warnings and by the profiler."""
    model = network()
    optimizer = AdamW(model.parameters(), lr=1e-3, foreach=True)
    for _ in range(WARM_UP):
        iterate(scaler, model, optimizer)
    if EMULATED:
        device().forget()
        for _ in range(STEPS):
            iterate(scaler, model, optimizer)
        return len(device().waits()), 0
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            iterate(scaler, model, optimizer)
    torch.cuda.set_sync_debug_mode("default")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(STEPS):
            iterate(scaler, model, optimizer)
    waits = [event for event in profile.events() if "Synchronize" in event.name]
    warned = [warning for warning in caught if "synchroniz" in str(warning.message)]
    return len(warned), len(waits)


def test_the_plain_route_syncs_as_ever() -> None:
    """On the plain route torch warns of as many syncs as with the stock scaler, and its profiler sees no more."""
    warned, profiled = syncs(torch.amp.GradScaler(DEVICE))
    assert warned > 0
    ours = syncs(ampmon.GradScaler(DEVICE, monitor=ampmon.Config(every=1)))
    # The first profile of a process may include loading the profiler.
    assert ours[0] == warned
    assert ours[1] <= profiled


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_training_is_bit_identical(fused: bool, every: int) -> None:
    """Weights and scaler state equal the stock scaler's, through overflows, at any sampling interval."""
    ended: list[Any] = []
    for make in (
        lambda: torch.amp.GradScaler(DEVICE, init_scale=2.0**20, growth_interval=4),
        lambda: ampmon.GradScaler(
            DEVICE, init_scale=2.0**20, growth_interval=4, monitor=ampmon.Config(every=every)
        ),
    ):
        model = network()
        optimizer = AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaler = make()
        for _ in range(STEPS):
            iterate(scaler, model, optimizer)
        weights = [parameter.detach().cpu() for parameter in model.parameters()]
        ended.append([weights, scaler.state_dict()])
    assert bits(*ended)


@pytest.mark.parametrize("every", [1, pytest.param(10**6, marks=on_gpu)])  # needs the kernels
def test_an_overflow_is_named(data_directory: Path, every: int) -> None:
    """In a sampled update as in another, the culprit is named with its numbers of inf and NaN."""
    model = network()
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = ampmon.GradScaler(DEVICE, model=model, monitor=ampmon.Config(every=every))
    for _ in range(3):
        iterate(scaler, model, optimizer)
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(32, 256, device=DEVICE)).square().mean()).backward()
    model[2].weight.grad[0, :2] = float("inf")
    model[2].weight.grad[1, 0] = float("nan")
    scaler.step(optimizer)
    scaler.update()
    recorded = recording(data_directory)
    (taken,) = recorded.updates[-1].optimizers
    assert taken.skipped
    assert recorded.names(taken) == ["2.weight"]
    assert [(culprit.inf, culprit.nan) for culprit in taken.culprits] == [(2, 1)]


@on_gpu
def test_memory_is_a_hundredth_of_the_gradients() -> None:
    """Sampling every update takes at most 1 % of the gradients' size on the device, and does not grow."""
    parameters = [torch.nn.Parameter(torch.ones(1 << 22, device=DEVICE)) for _ in range(16)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    size = sum(parameter.grad.nbytes for parameter in parameters)
    optimizer = torch.optim.SGD(parameters, lr=0.0, fused=True)

    def peak(scaler: torch.amp.GradScaler, steps: int) -> int:
        torch.cuda.reset_peak_memory_stats()
        for _ in range(steps):
            scaler.scale(torch.ones((), device=DEVICE))
            scaler.step(optimizer)
            scaler.update()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    stock = peak(torch.amp.GradScaler(DEVICE), 3)
    monitored = ampmon.GradScaler(DEVICE, monitor=ampmon.Config(every=1))
    first, settled, later = peak(monitored, 3), peak(monitored, 50), peak(monitored, 50)
    assert max(first, settled) - stock <= size / 100
    assert later - settled <= size / 10_000


@on_gpu
def test_the_memory_peak_is_torchs(data_directory: Path) -> None:
    """A sampled update records the memory peak that torch gives for the fullest device."""
    model = network()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    scaler = ampmon.GradScaler(DEVICE, monitor=ampmon.Config(every=1))
    iterate(scaler, model, optimizer)
    devices = range(torch.cuda.device_count())
    peak = max(torch.cuda.max_memory_allocated(device) for device in devices)
    (update,) = recording(data_directory).updates
    assert 0 < (update.memory_peak or 0) <= peak
