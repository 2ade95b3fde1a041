"""The time that monitoring adds on the host to an update whose gradients are not sampled.

A stock scaler and a monitored one take turns, iteration by iteration, each with its own optimizer and gradients, so
both see the same machine. A scaler of an empty subclass takes turns with them: the time it adds is the noise. Meanwhile
the sender's process delivers the records to a server, a third process. Added times are differences of percentiles.
`to_stock` is the median, over the turns, of the added time relative to the stock iteration of the same turn.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ampmon
from ampmon import sender
from benchmarks.paired import Work


TENSORS = (6, 148)
ELEMENTS = 64
PAIRS_HOT, PAIRS_SWEPT = 10_000, 500
WARM_UP = 100
SWEEP_BYTES = 1 << 26
"""More than the caches hold, so a pass over it before an iteration leaves it cold caches."""


class EmptySubclass(torch.amp.GradScaler):
    """The control: a subclass that changes nothing."""


Scaler = Callable[..., torch.amp.GradScaler]
SCALERS: dict[str, Scaler] = {
    "stock": torch.amp.GradScaler,
    "control": EmptySubclass,
    "monitored": lambda *args, **kwargs: ampmon.GradScaler(
        *args, **kwargs, monitor=ampmon.Config(every=10**9)
    ),
}


def iteration(
    make: Scaler, tensors: int, device: str = "cpu", *, fused: bool | None = None
) -> Work:
    """The scaler calls of one training iteration with ``tensors`` parameters. The gradients stay unchanged."""
    parameters = [torch.zeros(ELEMENTS, device=device, requires_grad=True) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.ones(ELEMENTS, device=device)
    return steps(make, torch.optim.SGD(parameters, lr=0.0, fused=fused), device)


def steps(make: Scaler, optimizer: torch.optim.Optimizer, device: str) -> Work:
    """The scaler calls of one training iteration with an optimizer."""
    scaler = make(device, init_scale=1.0, growth_interval=2**31 - 1)
    loss = torch.zeros((), device=device)

    def iterate() -> None:
        scaler.scale(loss)
        scaler.step(optimizer)
        scaler.update()

    return iterate


def compare(
    tensors: int, pairs: int, *, swept: bool, device: str = "cpu", fused: bool | None = None
) -> dict[str, list[float]]:
    """Host microseconds of each iteration, by scaler. On a GPU, each iteration starts on an idle device."""
    iterations = {
        name: iteration(make, tensors, device, fused=fused) for name, make in SCALERS.items()
    }
    idle = torch.cuda.synchronize if device == "cuda" else None
    return alternate(iterations, pairs, before=sweep() if swept else idle)


def sweep() -> Work:
    """A pass over more memory than the caches hold."""
    held = np.zeros(SWEEP_BYTES // 8)
    return partial(np.add, held, 1.0, held)


def alternate(
    iterations: Mapping[str, Work],
    pairs: int,
    *,
    before: Work | None = None,
    limit_s: float = math.inf,
) -> dict[str, list[float]]:
    """Host microseconds of each iteration. ``before`` is called before each. Stops at the limit after two pairs."""
    times: dict[str, list[float]] = {name: [] for name in iterations}
    turns = list(iterations.items())
    for _ in range(min(WARM_UP, pairs)):
        for iterate in iterations.values():
            iterate()
    until = time.perf_counter() + limit_s
    for turn in range(pairs):
        if turn >= 2 and time.perf_counter() > until:
            break
        # In a fixed order, each would always find the caches as left by the same other one.
        random.shuffle(turns)
        for name, iterate in turns:
            if before is not None:
                before()
            started = time.perf_counter_ns()
            iterate()
            times[name].append((time.perf_counter_ns() - started) / 1000)
    return times


def percentiles(times: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=100)
    return cuts[49], cuts[98]


def summarise(times: dict[str, list[float]]) -> dict[str, float]:
    """The stock iteration's p50 and p99 in us, the us that the others add, and the share of stock that they add."""
    stock = times["stock"]
    p50, p99 = percentiles(stock)
    row = {"stock_p50_us": p50, "stock_p99_us": p99}
    for name in ("monitored", "control"):
        other50, other99 = percentiles(times[name])
        row |= {f"{name}_added_p50_us": other50 - p50, f"{name}_added_p99_us": other99 - p99}
        ratios = [other / one - 1 for other, one in zip(times[name], stock, strict=True)]
        row[f"{name}_to_stock"] = statistics.median(ratios)
    return {key: round(value, 2) for key, value in row.items()}


def measure(directory: Path) -> list[dict[str, Any]]:
    """A row for each number of tensors, caches hot and swept. Records go through a spool in ``directory`` to a server.

    Raises RuntimeError if the sender is not running or reports a problem.
    """
    rows: list[dict[str, Any]] = []
    from benchmarks.server import serving  # callers of `compare` need no server

    with serving(directory) as (url, _, _):
        ampmon.init("benchmark", dir=directory, url=url, mode="online")
        for caches, pairs in (("hot", PAIRS_HOT), ("swept", PAIRS_SWEPT)):
            for tensors in TENSORS:
                times = compare(tensors, pairs, swept=caches == "swept")
                rows.append({"tensors": tensors, "caches": caches, **summarise(times)})
        status = sender.status(directory)
        ampmon.finish()
    if status is None or status.problem(url) is not None:
        raise RuntimeError(f"the sender was not at work beside: {status}")
    return rows
