"""The host time that monitoring adds to an update on the device that the tests emulate, and with FSDP2's DTensors.

Measured as in `host_cost`, but nothing is sent. The emulated device computes on a thread of the same processor, and
each iteration starts when it is idle. The DTensors are on the CPU, in a group of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import ampmon
from benchmarks import host_cost
from benchmarks.paired import Work
from benchmarks.processes import apart


EMULATED_TENSORS, EMULATED_BAR_US = (6, 148, 686), 40.0
DTENSORS, DTENSORS_BAR_US = (6, 148), 60.0
PAIRS = 1500


def measure(directory: Path) -> list[dict[str, Any]]:
    """A row for each kind and number of tensors. Each kind has its own process. Needs `g++` for the device."""
    rows: list[dict[str, Any]] = []
    for work in (_emulated, _dtensors):
        rows += apart(work, directory)
    return rows


def _emulated(directory: Path) -> list[dict[str, Any]]:
    from tests.device.emulated import NAME, Device  # before any backward pass, see there

    Device()
    rows = []
    for what, fused in (("emulated device", None), ("emulated device, fused optimizer", True)):
        make = partial(host_cost.iteration, device=NAME, fused=fused)
        bar_us, counts = EMULATED_BAR_US, EMULATED_TENSORS
        rows += _compared(directory, what, make, counts, bar_us, _synchronize)
    return rows


def _dtensors(directory: Path) -> list[dict[str, Any]]:
    group = f"file://{directory}/group"
    torch.distributed.init_process_group("gloo", init_method=group, rank=0, world_size=1)
    try:
        return _compared(directory, "DTensors", _sharded, DTENSORS, DTENSORS_BAR_US, None)
    finally:
        torch.distributed.destroy_process_group()


def _synchronize() -> None:
    torch.accelerator.synchronize()


def _sharded(make: host_cost.Scaler, tensors: int) -> Work:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))

    def shard(whole: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(whole, mesh, [Shard(0)])

    parameters = [
        torch.nn.Parameter(shard(torch.zeros(host_cost.ELEMENTS))) for _ in range(tensors)
    ]
    for parameter in parameters:
        parameter.grad = shard(torch.ones(host_cost.ELEMENTS))
    return host_cost.steps(make, torch.optim.SGD(parameters, lr=0.0, foreach=True), "cpu")


def _compared(
    directory: Path,
    what: str,
    make: Callable[[host_cost.Scaler, int], Work],
    counts: tuple[int, ...],
    bar_us: float,
    idle: Work | None,
) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    rows = []
    ampmon.init("benchmark", dir=directory, mode="offline")
    for tensors in counts:
        iterations = {name: make(scaler, tensors) for name, scaler in host_cost.SCALERS.items()}
        row = host_cost.summarise(host_cost.alternate(iterations, PAIRS, before=idle))
        rows.append({"what": what, "tensors": tensors, **row, "bar_us": bar_us})
    ampmon.finish()
    return rows
