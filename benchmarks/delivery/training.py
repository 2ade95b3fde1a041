"""A process that trains at a pace, or as fast as it can, beside what measures it; stock, it does not load ampmon.

Says `ready` before its first update and after the last the times at which they returned; then it stays as it is until
its input ends. Knows nothing of what is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks import given
from benchmarks.paired import Work


Make: TypeAlias = Callable[..., torch.amp.GradScaler]

ELEMENTS = 64
END_S = 60.0


def small_model(make: Make) -> Work:
    """An iteration of a small network, its forward pass in fp16, under a scale that grows until fp16 overflows."""
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
    """An iteration of nothing but the scaler: a million of them are done in some minutes."""
    return given.iteration([torch.ones(ELEMENTS)], make(**given.SCALER))


WORKS = {"model": small_model, "gradients": given_gradients}


def train(iterate: Work, updates: int, per_second: float) -> list[int]:
    """`time.perf_counter_ns` when each update had returned; without a pace none are kept."""
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


@contextmanager
def training(
    work: str, updates: int, per_second: float = 0.0, *, monitored: tuple[Path, str] | None
) -> Iterator[subprocess.Popen[str]]:
    """A process that trains, ready on entry; ``monitored`` is a data directory and the server's address.

    On the way out it is told to end, and waited for. Raises RuntimeError where it failed.
    """
    command = [sys.executable, "-m", "benchmarks.delivery.training", work]
    process = subprocess.Popen(
        [*command, str(updates), str(per_second), *map(str, monitored or ())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the training process did not begin")
        yield process
        process.stdin.close()
        if process.wait(END_S):
            raise RuntimeError(f"the training process ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _main(work: str, updates: str, per_second: str, directory: str = "", url: str = "") -> None:
    torch.set_num_threads(1)
    make: Make = torch.amp.GradScaler
    if directory:
        import ampmon

        ampmon.init("benchmark", dir=directory, url=url, mode="online")
        make = ampmon.GradScaler
    iterate = WORKS[work](make)
    print("ready", flush=True)
    print(json.dumps(train(iterate, int(updates), float(per_second))), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _main(*sys.argv[1:])
