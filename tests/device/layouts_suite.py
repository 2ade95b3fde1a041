"""Parity with the stock scaler for channels-last parameters, DTensors, and steps captured into graphs.

Runs on the emulated device in a process that test_device.py starts, on CUDA by `make gpu`, and in part on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ampmon
from device.place import EMULATED, PLACE, Device, at_rest
from older_torch import FSDP2
from scaler.test_parity import bits


__all__ = ["at_rest"]  # a fixture
UPDATES = 6
Left = list[torch.Tensor | dict[str, Any]]


def scalers() -> list[torch.amp.GradScaler]:
    """Return a stock scaler and two of ours, sampled in every update and in every third one."""
    options: dict[str, Any] = {"init_scale": 2.0**10, "growth_interval": 2}
    configs = [ampmon.Config(every=every) for every in (1, 3)]
    ours = [ampmon.GradScaler(PLACE, **options, monitor=config) for config in configs]
    return [torch.amp.GradScaler(PLACE, **options), *ours]


def left(model: torch.nn.Module, scaler: torch.amp.GradScaler) -> Left:
    """Return the weights and the scaler's state."""
    weights = [
        each.to_local() if hasattr(each, "to_local") else each for each in model.parameters()
    ]
    return [*(weight.detach().cpu().clone() for weight in weights), scaler.state_dict()]


def alike(train: Callable[[torch.amp.GradScaler], Left]) -> None:
    """Assert that all scalers leave the same bits and that ours count no error."""
    stock, *ours = scalers()
    expected = train(stock)
    for scaler in ours:
        assert bits(expected, train(scaler))
        assert scaler.monitor.errors == 0


def step(
    scaler: torch.amp.GradScaler,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
) -> None:
    """Run one update in fp16."""
    with torch.autocast(PLACE, dtype=torch.float16):
        loss = model(inputs).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@pytest.mark.skipif(EMULATED, reason="the emulated device has no convolutions")
def test_channels_last() -> None:
    """Convolutions with channels-last gradients end bit for bit as with the stock scaler."""
    torch.backends.cudnn.deterministic = True

    def train(scaler: torch.amp.GradScaler) -> Left:
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(8, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3)]
        model = torch.nn.Sequential(*layers).to(PLACE, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(4, 8, 12, 12).to(PLACE, memory_format=torch.channels_last)
        for update in range(UPDATES):
            step(scaler, model, optimizer, inputs * (float("inf") if update == 3 else 1.0))
        return left(model, scaler)

    alike(train)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group(
        "nccl" if PLACE == "cuda" and dist.is_nccl_available() else "gloo",
        store=dist.HashStore(),
        rank=0,
        world_size=1,
    )
    yield
    dist.destroy_process_group()


@FSDP2
@pytest.mark.skipif(EMULATED, reason="no process group knows the emulated device")
@pytest.mark.usefixtures("alone")
def test_fsdp2_alone() -> None:
    """FSDP2 over one rank, with DTensor gradients, ends bit for bit as with the stock scaler."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(PLACE, (1,))

    def train(scaler: torch.amp.GradScaler) -> Left:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)]
        model = torch.nn.Sequential(*layers).to(PLACE)
        for each in (model[0], model[2], model):
            fully_shard(each, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        inputs = torch.randn(4, 8).to(PLACE)
        for update in range(UPDATES):
            step(scaler, model, optimizer, inputs * (float("inf") if update == 3 else 1.0))
        return left(model, scaler)

    alike(train)


@pytest.mark.skipif(PLACE == "cpu", reason="a CPU captures nothing")
def test_a_captured_step(emulated: Device) -> None:
    """A step that is captured into a graph under the monitor and replayed ends as with the stock scaler."""

    def train(scaler: torch.amp.GradScaler) -> Left:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)]
        model = torch.nn.Sequential(*layers).to(PLACE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, capturable=True)
        inputs = torch.randn(4, 8).to(PLACE)
        side = torch.Stream(PLACE)
        side.wait_stream(torch.accelerator.current_stream())
        with side:
            for _ in range(3):
                step(scaler, model, optimizer, inputs)
        torch.accelerator.current_stream().wait_stream(side)
        with emulated.capture() as graph:
            step(scaler, model, optimizer, inputs)
        for _ in range(UPDATES):
            graph.replay()
        torch.accelerator.synchronize()
        return left(model, scaler)

    alike(train)
    assert emulated.violations() == []
