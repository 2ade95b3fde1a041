"""The kernels that measure gradients on a GPU, against torch's own unscaling and against a copy of the same bytes.

Events on the stream time each kernel, after a delay that lets the host run ahead, so they measure the device's time.
`host_ms` is the host's time to enqueue. All kernels take turns over the same gradients, those of GPT-2 small, unscaled
by 0.5 and by 2 alternately. A factor of 1 has its own rows: ours then writes nothing, while torch reads and writes.
One read at the copy's bandwidth takes half the copy's time, since a copy reads and writes. If all values lie within
one binade, one bin counts them all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import cycle, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ampmon.probe import eager
from ampmon.probe.gpu import kernels, loading
from benchmarks import given
from benchmarks.paired import NO_RATIO, Work, ratio, seconds, shown


ROUNDS = 100
DELAY_CYCLES = 4_000_000
"""About two milliseconds: longer than the host needs to enqueue the timed work."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DATA = {"random": torch.Tensor.normal_, "one binade": lambda tensor: tensor.uniform_(1.0, 2.0)}
COPY, READ = "copy", "one read, half a copy"
UNSCALE, UNSCALE_BY_1 = "torch's unscale", "torch's unscale by 1"
STATISTICS, PLAIN = "statistics alone", "statistics in plain torch"
FUSED, FUSED_BY_1 = "statistics and unscaling", "statistics and unscaling by 1"
ALONE = (COPY, READ, UNSCALE, UNSCALE_BY_1)
AGAINST = {STATISTICS: READ, FUSED: UNSCALE, FUSED_BY_1: UNSCALE_BY_1, PLAIN: READ}
BARS = {STATISTICS: 1.1, FUSED: 1.1}


class Taken(NamedTuple):
    """Milliseconds on the device, and on the host to enqueue."""

    device: float
    host: float


Clock: TypeAlias = Callable[[Sequence[Work]], list[Taken]]
"""Runs works one after another and times each."""


def measure(_: Path) -> list[dict[str, Any]]:
    """A row for each way and dtype on the first CUDA device. Without one, rows have no figures."""
    if not torch.cuda.is_available():
        names = (*ALONE, *AGAINST)
        return [_no_row(name, "", dtype, "no CUDA device") for dtype in DTYPES for name in names]
    rows: list[dict[str, Any]] = []
    for dtype, data in product(DTYPES, DATA):
        rows += compare(made(dtype, data, "cuda"), on_device, ROUNDS, data)
    return rows


def made(dtype: torch.dtype, data: str, device: str) -> list[Tensor]:
    """Gradients in the shapes of GPT-2 small. ``data`` is a key of `DATA`."""
    tensors = [torch.empty(shape, device=device) for shape in given.shapes()]
    return [DATA[data](tensor).mul_(2**-11).to(dtype) for tensor in tensors]


def until_ready(work: Work) -> None:
    """Do the work as soon as its kernel is compiled. Blocks until then."""
    while True:
        try:
            work()
            return
        except loading.NotReady:
            time.sleep(0.01)


def compare(
    gradients: Sequence[Tensor], clock: Clock, rounds: int, data: str = ""
) -> list[dict[str, Any]]:
    """A row for each way. The gradients share a device and a dtype, and ``data`` names their values."""
    dtype = gradients[0].dtype
    works = _works(list(gradients))
    for work in works.values():
        until_ready(work)
    times: dict[str, list[Taken]] = {name: [] for name in works}
    names = list(works)
    for turn in shown(range(rounds + 1), f"kernels, {dtype}"):
        random.shuffle(names)
        taken = clock([works[name] for name in names])
        if turn:  # the first warms caches
            for name, one in zip(names, taken, strict=True):
                times[name].append(one)
    times[READ] = [Taken(one.device / 2, one.host) for one in times[COPY]]
    read = sum(gradient.nbytes for gradient in gradients)
    rows = [_row(name, data, dtype, times, read) for name in (*ALONE, *AGAINST) if name in times]
    absent = [name for name in (*ALONE, *AGAINST) if name not in times]
    why = "Triton does not run here"
    if kernels.supported(gradients[0].device):
        why = f"{dtype} is not unscaled"
    return rows + [_no_row(name, data, dtype, why) for name in absent]


def _works(gradients: list[Tensor]) -> dict[str, Work]:
    device = gradients[0].device
    found = torch.zeros(1, device=device)
    ones, half, double = (torch.full((1,), factor, device=device) for factor in (1.0, 0.5, 2.0))
    # Shared by both ways, so repeated unscaling leaves the values in range.
    factors = cycle((half, double))
    stock = torch._amp_foreach_non_finite_check_and_unscale_
    copies = [torch.empty_like(gradient) for gradient in gradients]
    works: dict[str, Work] = {
        COPY: lambda: torch._foreach_copy_(copies, gradients),
        PLAIN: lambda: eager.launch(gradients),
    }
    kept = kernels.Cache()
    if kernels.supported(device):
        works[STATISTICS] = lambda: kept.statistics(gradients)
    if gradients[0].dtype not in kernels.UNSCALED:
        return works
    works[UNSCALE] = lambda: stock(gradients, found, next(factors))
    works[UNSCALE_BY_1] = lambda: stock(gradients, found, ones)
    if kernels.supported(device):
        works[FUSED] = lambda: kept.unscale(gradients, found, next(factors))
        works[FUSED_BY_1] = lambda: kept.unscale(gradients, found, ones)
    return works


def on_device(works: Sequence[Work]) -> list[Taken]:
    """Time works on the current CUDA stream. Blocks until they end."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in works]
    hosts = []
    for work, (began, ended) in zip(works, events, strict=True):
        torch.cuda._sleep(DELAY_CYCLES)
        began.record()
        hosts.append(1000 * seconds(work))
        ended.record()
        torch.cuda.synchronize()
    devices = [began.elapsed_time(ended) for began, ended in events]
    return [Taken(*each) for each in zip(devices, hosts, strict=True)]


def on_host(works: Sequence[Work]) -> list[Taken]:
    """Time works that are finished when they return."""
    taken = [1000 * seconds(work) for work in works]
    return [Taken(each, each) for each in taken]


def _row(
    name: str, data: str, dtype: torch.dtype, times: dict[str, list[Taken]], read: int
) -> dict[str, Any]:
    devices = [one.device for one in times[name]]
    against = AGAINST.get(name)
    compared = NO_RATIO
    if against:
        others = [one.device for one in times[against]]
        compared = ratio(devices, others).row(BARS.get(name))
    middle = median(devices)
    elements = read // dtype.itemsize
    return {
        "what": name,
        "dtype": str(dtype).removeprefix("torch."),
        "data": data,
        "device_ms": round(middle, 4),
        "ns_per_element": round(1e6 * middle / elements, 4),
        "host_ms": round(median(one.host for one in times[name]), 4),
        "read_gb_per_s": round(read / middle / 1e6, 1),
        "against": against,
        **compared,
        "note": "",
    }


def _no_row(name: str, data: str, dtype: torch.dtype, why: str) -> dict[str, Any]:
    cells: dict[str, Any] = dict.fromkeys(
        ("device_ms", "ns_per_element", "host_ms", "read_gb_per_s")
    )
    return {
        "what": name,
        "dtype": str(dtype).removeprefix("torch."),
        "data": data,
        **cells,
        "against": AGAINST.get(name),
        **NO_RATIO,
        "note": f"not measured: {why}",
    }
