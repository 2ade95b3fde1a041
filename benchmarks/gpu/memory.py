"""Device memory and pinned host memory of monitoring, in bytes: for GPT-2's gradients, and with activations on."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import ampmon
from ampmon.probe.gpu import kernels, loading
from benchmarks import given, gpu_kernels, networks
from benchmarks.gpu.stage_results import StageResults


SHARE = 0.01
UPDATES = 5
BATCH = 2


def run(results: StageResults, place: str, limit_s: float) -> None:
    """Rows of bytes. The bar limits the device memory of sampling each update, as a share of the gradients'."""
    with tempfile.TemporaryDirectory() as folder:
        ampmon.init("make gpu", "memory", dir=folder, mode="offline")
        count = Bytes(results)
        of_gradients(results, count, place)
        for every in (None, 1):
            name = "stock" if every is None else "activations in each update"
            count(f"peak of GPT-2's update, {name}", activations(place, every))
        ampmon.finish()


def of_gradients(results: StageResults, count: Bytes, place: str) -> None:
    """Report the memory that sampling gradients takes."""
    shapes = given.shapes()
    parameters = [torch.zeros(shape, device=place, requires_grad=True) for shape in shapes]
    gradients = [torch.ones_like(parameter) for parameter in parameters]
    size = sum(gradient.nbytes for gradient in gradients)
    count("gradients of GPT-2 small", size)
    if kernels.supported(gradients[0].device):
        cache = kernels.Cache()
        gpu_kernels.until_ready(lambda: cache.statistics(gradients))
        count("tables of the kernels", cache.nbytes)
    added = sampling(parameters, gradients, place)
    count("the peak that sampling adds", added)
    count("pinned on the host", pinned())
    share = round(added / size, 5)
    holds = share <= SHARE if place == "cuda" else None  # unknown on a CPU
    results.bar("memory that sampling takes, of the gradients'", holds, share, SHARE)


class Bytes:
    """A growing table of bytes. Its shares are relative to the first row."""

    def __init__(self, results: StageResults) -> None:
        self._results = results
        self._rows: list[dict[str, Any]] = []

    def __call__(self, what: str, found: int) -> None:
        size = self._rows[0]["bytes"] if self._rows else found
        row: dict[str, Any] = {"what": what, "bytes": found, "of_gradients": round(found / size, 6)}
        self._rows.append(row)
        self._results.rows("memory", self._rows)


def until_compiled(work: Callable[[], None], place: str) -> None:
    """Do the work, and on a GPU repeat it until its kernels are compiled."""
    work()
    while place == "cuda" and loading.compiling():
        time.sleep(0.1)
        work()


def peak(work: Callable[[], None], place: str) -> int:
    """Do the work and return the device's peak memory in bytes, or 0 on a CPU, where it is unknown."""
    if place != "cuda":
        work()
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def sampling(parameters: list[torch.Tensor], gradients: list[torch.Tensor], place: str) -> int:
    """The bytes that sampling every update adds to the peak of stock updates."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer = torch.optim.SGD(parameters, lr=0.0, fused=True)

    def updates(scaler: torch.amp.GradScaler) -> None:
        for _ in range(UPDATES):
            scaler.scale(torch.ones((), device=place))
            scaler.step(optimizer)
            scaler.update()

    options: dict[str, Any] = {"init_scale": 1.0}
    stock = torch.amp.GradScaler(place, **options)
    ours = ampmon.GradScaler(place, **options, monitor=ampmon.Config(every=1))
    until_compiled(lambda: updates(ours), place)
    return peak(lambda: updates(ours), place) - peak(lambda: updates(stock), place)


def pinned() -> int:
    """Bytes of pinned memory that torch has allocated, or 0 if it does not count them."""
    statistics: Callable[[], dict[str, Any]] = getattr(torch.cuda, "host_memory_stats", dict)
    if not torch.cuda.is_available():
        return 0
    return int(statistics().get("allocated_bytes.current", 0))


def activations(place: str, every: int | None) -> int:
    """The peak bytes of a GPT-2 small update that samples activations each ``every`` updates. None: stock scaler."""
    size = networks.GPT2 if place == "cuda" else networks.TINY
    torch.manual_seed(0)
    model = networks.gpt2(size).to(place)
    batch = [part[:BATCH].to(place) for part in networks.tokens(size)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler(place)
    if every is not None:
        config = ampmon.Config(every=1, activations=every)
        scaler = ampmon.GradScaler(place, model=model, monitor=config)

    def update() -> None:
        with torch.autocast(place, torch.float16):
            loss = model(*batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    until_compiled(update, place)
    return peak(update, place)
