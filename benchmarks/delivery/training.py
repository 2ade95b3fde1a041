"""A process that trains at a fixed pace or as fast as it can, for benchmarks. A stock one never loads ampmon.

It prints `ready` before its first update, and after the last one the times at which the updates returned. Then it
stays until its input ends. Independent of the measurement.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks import given
from benchmarks.paired import Work
from benchmarks.processes import Worker, working


Make: TypeAlias = Callable[..., torch.amp.GradScaler]

ELEMENTS = 64
RECORDED_AT_ONCE, REST_S = 1000, 0.01


def small_model(make: Make) -> Work:
    """An iteration of a small network with an fp16 forward pass. Its scale grows until fp16 overflows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = make("cpu", growth_interval=100)
    inputs, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))

    def iterate() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return iterate


def given_gradients(make: Make) -> Work:
    """An iteration of the scaler alone. A hundred thousand take half a minute."""
    return given.iteration([torch.ones(ELEMENTS)], make(**given.SCALER))


WORKS = {"model": small_model, "gradients": given_gradients}


def train(iterate: Work, updates: int, per_second: float) -> list[int]:
    """Train, and return the `time.perf_counter_ns` at which each update returned. Without a pace, return none."""
    if not per_second:
        for _ in range(updates):
            iterate()
        return []
    returned = []
    began = time.perf_counter()
    for update in range(updates):
        time.sleep(max(0.0, began + update / per_second - time.perf_counter()))
        iterate()
        returned.append(time.perf_counter_ns())
    return returned


def record(updates: int) -> None:
    """Hand more updates to the run's recorder, as a scaler does after measuring them."""
    from ampmon import wire
    from ampmon.client import current_run as process

    recorder = process.current()
    assert recorder is not None
    stream = recorder.recent
    took = (wire.OptimizerStep(optimizer="Still", path="unscaled"),)
    for update in range(updates):
        if update % RECORDED_AT_ONCE == 0:
            time.sleep(REST_S)  # no training records without a pause
        values = {"duration": 50_000.0 + update % 997, "cost": 100.0 + update % 7}
        stream.put(
            wire.Update,
            ordinal=stream.ordinal,
            scale=1.0,
            scale_after=1.0,
            growth_tracker=update,
            event="steady",
            optimizers=took,
            **values,
        )
        stream.ordinal += 1


def training(
    work: str,
    updates: int,
    per_second: float = 0.0,
    *,
    monitored: tuple[Path, str] | None,
    recorded: int = 0,
) -> AbstractContextManager[Worker]:
    """Run a process that trains. ``monitored`` is a data directory and the server's address.

    After its updates, the process hands ``recorded`` more to its recorder.
    """
    given = (work, updates, per_second, recorded, *(monitored or ()))
    return working("benchmarks.delivery.training", *given)


def _main(work: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    updates, per_second, recorded, *monitored = arguments
    make: Make = torch.amp.GradScaler
    if monitored:
        import ampmon

        directory, url = monitored
        ampmon.init("benchmark", dir=directory, url=url, mode="online")
        make = ampmon.GradScaler
    iterate = WORKS[work](make)
    print("ready", flush=True)
    returned = train(iterate, int(updates), float(per_second))
    record(int(recorded)) if monitored else None
    print(json.dumps(returned), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _main(*sys.argv[1:])
