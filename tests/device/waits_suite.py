"""What a monitored update makes the host wait for, and what it allocates for copies, beside the stock scaler's.

On the emulated device, in a process that test_device.py starts, and on CUDA by `make gpu`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

import ampmon
from device.place import EMULATED, PLACE, Device, device
from waiting import DEADLINE_S


UPDATES = 20
WARM_UP = 8 if EMULATED else 40
DELAY_CYCLES = 100_000_000
"""Some 50 ms: as many copies are under way at once as ever will be, and have their pinned memory."""
ROUTES = ("plain", "fused", "clipped", "accumulated", "two optimizers")
Figures = Callable[[str, object], None]


def waits_of(names: Iterable[str]) -> Counter[str]:
    """Of what a profiler saw: calls that wait for a device, and copies from or to memory that is not pinned."""
    return Counter(
        name
        for name in names
        if name.endswith("Synchronize")
        or name in ("cudaFree", "cudaFreeHost")
        or (name.startswith("cudaMemcpy") and "Async" not in name)
        or (name.startswith("Memcpy") and "Pageable" in name)
    )


def pinned_of(names: Iterable[str]) -> Counter[str]:
    """Of what a profiler saw: allocations of pinned memory."""
    return Counter(
        name for name in names if name in ("cudaHostAlloc", "cudaMallocHost", "cudaHostRegister")
    )


def test_what_a_profiler_saw_is_told_apart() -> None:
    """Waits and allocations of pinned memory are counted by name; launches and copies that nobody waits for are not."""
    seen = ["cudaStreamSynchronize", "cuEventSynchronize", "cudaMemcpy", "cudaMemcpyAsync"]
    seen += ["cudaLaunchKernel", "Memcpy DtoH (Device -> Pageable)", "cudaStreamSynchronize"]
    seen += ["Memcpy DtoH (Device -> Pinned)", "cudaHostAlloc", "cudaStreamWaitEvent", "cudaFree"]
    waits = waits_of(seen)
    assert waits.pop("cudaStreamSynchronize") == 2
    others = {"cuEventSynchronize", "cudaMemcpy", "Memcpy DtoH (Device -> Pageable)", "cudaFree"}
    assert waits == dict.fromkeys(others, 1)
    assert pinned_of(seen) == {"cudaHostAlloc": 1}


@pytest.fixture
def emulated() -> Iterator[Device]:
    """The device, running freely, with no wait counted."""
    device().reset()
    yield device()
    device().reset()


def updates(scaler: torch.amp.GradScaler, route: str) -> Callable[[], None]:
    """One update by a route, with all that it needs made."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1)]
    model = torch.nn.Sequential(*layers).to(PLACE)
    inputs = torch.ones(8, 64, device="cpu").to(PLACE)
    groups = [list(model[0].parameters()), list(model[2].parameters())]
    groups = groups if route == "two optimizers" else [list(model.parameters())]
    optimizers = [torch.optim.AdamW(group, lr=1e-4, fused=route == "fused") for group in groups]

    def update() -> None:
        for _ in range(2 if route == "accumulated" else 1):
            with torch.autocast(PLACE, dtype=torch.float16):
                loss = model(inputs).float().square().mean()
            scaler.scale(loss).backward()
        for optimizer in optimizers:
            if route == "clipped":
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
        scaler.update()
        model.zero_grad()

    return update


def seen(emulated: Device, update: Callable[[], None]) -> tuple[Counter[str], Counter[str]]:
    """Waits, and allocations of pinned memory, in some updates that others of the same kind went before."""
    if not EMULATED:
        torch.cuda._sleep(DELAY_CYCLES)
    for _ in range(WARM_UP):
        update()
    torch.accelerator.synchronize()
    if EMULATED:
        emulated.forget()
        for _ in range(UPDATES):
            update()
        return Counter(emulated.waits()), Counter()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(UPDATES):
            update()
    names = [event.name for event in profile.events()]
    assert any(name.startswith(("cudaLaunch", "cuLaunch")) for name in names), names[:50]
    return waits_of(names), pinned_of(names)


OPTIONS: dict[str, Any] = {"init_scale": 256.0, "growth_interval": 10**6}
"""The scale stays, so that no update is sampled out of turn."""


@cache
def of_stock(route: str) -> tuple[Counter[str], Counter[str]]:
    """What stock updates by a route have `seen`."""
    return seen(device(), updates(torch.amp.GradScaler(PLACE, **OPTIONS), route))


@pytest.mark.parametrize("every", [1, 10**6])
@pytest.mark.parametrize("route", ROUTES)
def test_no_route_adds_a_wait(
    emulated: Device, record_property: Figures, route: str, every: int
) -> None:
    """By each route, sampled or not, monitored updates wait as often as stock ones and pin no more memory."""
    stock = of_stock(route)
    scaler = ampmon.GradScaler(PLACE, **OPTIONS, monitor=ampmon.Config(every=every))
    ours = seen(emulated, updates(scaler, route))
    added = [sum((mine - theirs).values()) for mine, theirs in zip(ours, stock, strict=True)]
    record_property("added_waits", added[0])
    record_property("added_pinned_allocations", added[1])
    for name, each in (("stock", stock), ("ours", ours)):
        counts = sorted((each[0] + each[1]).items())
        record_property(name, ", ".join(f"{count} {call}" for call, count in counts))
    assert scaler.monitor is not None
    assert scaler.monitor.errors == 0
    assert added == [0, 0], (stock, ours)


def test_a_stream_of_one_s_own_waits_for_nothing(emulated: Device) -> None:
    """`ampmon.stream` takes scales and flags that are on the device, and reads none of them on the training thread."""
    feed = ampmon.stream("mine", policy=ampmon.Policy(init_scale=4.0))
    scale, found = torch.full((1,), 4.0, device=PLACE), torch.zeros((), device=PLACE)
    waits, _ = seen(emulated, lambda: feed.update(scale, scale, found))
    torch.accelerator.synchronize()
    feed.update(scale, scale / 2, found + 1)
    ampmon.finish(deadline_s=DEADLINE_S)
    assert waits == Counter()
    assert (feed.updates, feed.skips, feed.errors) == (WARM_UP + UPDATES + 1, 1, 0)
    assert feed.metrics()["amp/scale"] == 2.0


def test_an_added_wait_would_show(emulated: Device) -> None:
    """A training that reads its loss in each update waits more often than the stock one."""
    stock = updates(torch.amp.GradScaler(PLACE), "fused")
    other = updates(torch.amp.GradScaler(PLACE), "fused")
    value = torch.ones((), device=PLACE)

    def reading() -> None:
        other()
        value.item()

    less, more = seen(emulated, stock)[0], seen(emulated, reading)[0]
    assert sum((more - less).values()) >= UPDATES
