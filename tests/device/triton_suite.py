"""The Triton kernels on the emulated device: the interpreter runs them as tasks of the launching stream.

test_device.py runs this in its own process, with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import ampmon
from ampmon import wire
from ampmon.numerics.histogram import Statistics
from ampmon.probe import budget
from ampmon.probe.gpu import kernels, loading
from ampmon.probe.gpu.compiler import Kernel
from device.emulated import Device, device
from device.place import PLACE
from device.training_suite import OVERFLOWS, Training, content, counted, steady
from recording import recording
from scaler.test_parity import ROUTES, Case, bits
from waiting import wait_for


pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="Triton is built for Linux on x86-64 only",
)
CASES = [
    # While the scale does not move, two of three updates are not sampled.
    Case({"growth_interval": 2 if overflow else 100}, route, 2, overflow)
    for route in ROUTES
    for overflow in (False, True)
]


UPDATES = 4
"""The first and the last overflow and are sampled; between them the scale grows, or no update is sampled."""


def as_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a contiguous tensor for use by a task."""
    address = device().host_address(tensor.data_ptr())
    memory = (ctypes.c_char * max(tensor.nbytes, 1)).from_address(address)
    return torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel())


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the kernels launched on the device, which is reset.

    The interpreter runs them as on a GPU: enqueued, with device addresses.
    """
    names: list[str] = []

    def launcher(_: torch.device, kernel: Kernel) -> Callable[..., None]:
        names.append(kernel.name)
        run = partial(loading.interpret, kernel)

        def launch(grid: int, pointers: torch.Tensor, *arguments: torch.Tensor | None) -> None:
            addresses = as_host(pointers)
            offset = addresses.data_ptr() - pointers.data_ptr()
            given = [None if each is None else as_host(each) for each in arguments]
            device().run(lambda: run(grid, addresses + offset, *given))

        return launch

    monkeypatch.setattr(loading, "launcher", launcher)
    monkeypatch.setattr(kernels, "supported", lambda of: of.type == PLACE)
    device().reset()
    yield names
    device().reset()


def test_parity_with_kernels(launched: list[str]) -> None:
    """On each route, under jitter, kernels leave the weights, states and waits of the stock scaler."""
    device().jitter(200)
    for case in CASES:
        expected, waits = counted(torch.amp.GradScaler(PLACE, **case.arguments), case, UPDATES)
        scaler = ampmon.GradScaler(PLACE, **case.arguments, monitor=ampmon.Config(every=3))
        ours, own_waits = counted(scaler, case, UPDATES)
        assert bits(expected, ours), case
        assert own_waits == waits, case
        assert scaler.monitor is not None
        assert scaler.monitor.errors == 0
    assert set(launched) == {"measure", "attribute"}


def test_kernels_wait_for_nobody(
    launched: list[str], data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates and their kernels are enqueued behind a paused device, and records are as without a pause."""
    training = Training(every=3)
    for number in range(8):
        training.update(number)
        torch.accelerator.synchronize()
    expected = content(recording(data_directory), gradients=False)
    monkeypatch.setenv("AMPMON_DIR", str(data_directory / "paused"))
    training = Training(every=3)
    torch.accelerator.synchronize()
    emulated: Device = device()
    emulated.forget()
    with emulated.paused():
        for number in range(8):
            training.update(number)
        assert emulated.waits() == []
    assert content(recording(data_directory / "paused"), gradients=False) == expected
    assert [update[4] for update in expected][5] == [(True, ["0.weight"])]


@pytest.mark.parametrize("clips", [False, True])
def test_kernels_find_culprits_before_clipping(
    launched: list[str], data_directory: Path, monkeypatch: pytest.MonkeyPatch, clips: bool
) -> None:
    """After many steady updates an overflow is traced to the gradient where it began, although clipping spread it."""
    # On a busy machine, searches may exceed their share of the time.
    monkeypatch.setattr(budget, "_SAVED_NS", 10**15)
    updates = steady(data_directory, clips=clips)
    culprits = [updates[each].optimizers[0].culprits for each in OVERFLOWS]
    assert culprits == [(wire.Culprit(0, 4, 0),)] * len(OVERFLOWS)
    assert "attribute" in launched


@pytest.mark.usefixtures("launched")
def test_a_capture_that_begins_in_a_steady_update() -> None:
    """If a capture begins before `unscale_`, no kernel searches for culprits in it and reads back."""
    model = torch.nn.Linear(2, 2).to(PLACE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler(PLACE, init_scale=4.0, monitor=ampmon.Config(every=10**6))

    def is_steady() -> bool:
        scaler.scale(model(torch.ones(1, 2).to(PLACE)).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return scaler.monitor is not None and scaler.monitor.gear is not None

    wait_for(is_steady)
    scaler.scale(model(torch.ones(1, 2).to(PLACE)).sum()).backward()
    with device().capture():
        scaler.unscale_(optimizer)
        scaler.update()
    assert device().violations() == []
    assert scaler.monitor.errors == 0
    assert scaler.monitor.captured == 1


def test_nothing_is_measured_while_kernels_are_compiled(
    launched: list[str], data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While kernels compile, only overflowed gradients are read; then updates of one or two passes are measured."""
    launcher = loading.launcher

    def compiling(_: torch.device, __: Kernel) -> None:
        raise loading.NotReady

    for passes in (1, 2):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 2).to(PLACE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = ampmon.GradScaler(
            PLACE, init_scale=4.0, name=f"of {passes}", monitor=ampmon.Config(every=1)
        )
        for update in range(6):
            monkeypatch.setattr(loading, "launcher", compiling if update < 4 else launcher)
            optimizer.zero_grad()
            for _ in range(passes):
                scaler.scale(model(torch.ones(1, 8).to(PLACE)).sum()).backward()
            if update == 1:
                model.weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
            assert bool(launched) == (update > 3)
        assert scaler.monitor.errors == 0
        launched.clear()
    recorded = recording(data_directory)
    for passes in (1, 2):
        updates = recorded.of(f"of {passes}")
        assert [each.gradients is not None for each in updates] == 4 * [False] + 2 * [True]
        culprits = [[each.parameter for each in one.optimizers[0].culprits] for one in updates]
        assert culprits == [[], [0], [], [], [], []]
        assert updates[-1].gradients is not None
        sizes = Statistics.from_wire(updates[-1].gradients).looked.tolist()
        assert sizes == [16, 2]
