"""Host waits and pinned allocations of monitored updates, compared with the stock scaler's.

Runs on the emulated device in a process that test_device.py starts, and on CUDA by `make gpu`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import distributed
from torch.nn.utils import clip_grad_norm_

import ampmon
from ampmon.activations.hooks import ENOUGH
from device.layouts_suite import step
from device.place import EMULATED, PLACE, Device, at_rest, device
from recording import recording
from waiting import DEADLINE_S, wait_for


__all__ = ["at_rest"]  # a fixture
UPDATES = 8 if EMULATED else 20
WARM_UP = 8 if EMULATED else 40
DELAY_CYCLES = 100_000_000
"""About 50 ms, so that the most copies ever are under way at once and have their pinned memory."""
ROUTES = ("plain", "fused", "clipped", "accumulated", "two optimizers", "Accelerate", "Lightning")
Figures = Callable[[str, object], None]


def waits_of(names: Iterable[str]) -> Counter[str]:
    """Count the profiled calls that wait for a device, and the copies from or to memory that is not pinned."""
    return Counter(
        name
        for name in names
        if name.endswith("Synchronize")
        or name in ("cudaFree", "cudaFreeHost")
        or (name.startswith("cudaMemcpy") and "Async" not in name)
        or (name.startswith("Memcpy") and "Pageable" in name)
    )


def pinned_of(names: Iterable[str]) -> Counter[str]:
    """Count the profiled allocations of pinned memory."""
    return Counter(
        name for name in names if name in ("cudaHostAlloc", "cudaMallocHost", "cudaHostRegister")
    )


def test_what_a_profiler_saw_is_distinguished() -> None:
    """Waits and allocations of pinned memory are counted by name; launches and asynchronous copies are not."""
    seen = ["cudaStreamSynchronize", "cuEventSynchronize", "cudaMemcpy", "cudaMemcpyAsync"]
    seen += ["cudaLaunchKernel", "Memcpy DtoH (Device -> Pageable)", "cudaStreamSynchronize"]
    seen += ["Memcpy DtoH (Device -> Pinned)", "cudaHostAlloc", "cudaStreamWaitEvent", "cudaFree"]
    waits = waits_of(seen)
    assert waits.pop("cudaStreamSynchronize") == 2
    others = {"cuEventSynchronize", "cudaMemcpy", "Memcpy DtoH (Device -> Pageable)", "cudaFree"}
    assert waits == dict.fromkeys(others, 1)
    assert pinned_of(seen) == {"cudaHostAlloc": 1}


class Accelerated:
    """An optimizer stepped as in Accelerate, which replaces its `step` for the call to see whether it was skipped."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self._optimizer, self._scaler = optimizer, scaler
        self.step_was_skipped = False

    def step(self, closure: None = None) -> None:
        original, taken = self._optimizer.step, []

        def step(*args: Any, **kwargs: Any) -> Any:
            taken.append(True)
            return original(*args, **kwargs)

        self._optimizer.step = step  # type: ignore[method-assign]
        self._scaler.step(self._optimizer, closure)
        self._scaler.update()
        self._optimizer.step = original  # type: ignore[method-assign]
        self.step_was_skipped = not taken


def step_as_lightning(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, closure: Callable[[], Any]
) -> None:
    """Step as Lightning does: run the closure first, and always unscale ahead, with or without clipping."""
    closure()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def updates(scaler: torch.amp.GradScaler, route: str) -> Callable[[], None]:
    """Return a function that runs one update by a route."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1)]
    model = torch.nn.Sequential(*layers).to(PLACE)
    inputs = torch.ones(8, 64, device="cpu").to(PLACE)
    groups = [list(model[0].parameters()), list(model[2].parameters())]
    groups = groups if route == "two optimizers" else [list(model.parameters())]
    optimizers = [torch.optim.AdamW(group, lr=1e-4, fused=route == "fused") for group in groups]

    accelerated = Accelerated(optimizers[0], scaler)

    def backward() -> None:
        with torch.autocast(PLACE, dtype=torch.float16):
            loss = model(inputs).float().square().mean()
        scaler.scale(loss).backward()

    def update() -> None:
        model.zero_grad()
        if route == "Lightning":
            step_as_lightning(optimizers[0], scaler, backward)
            return
        for _ in range(2 if route == "accumulated" else 1):
            backward()
        if route == "Accelerate":
            accelerated.step()
            return
        for optimizer in optimizers:
            if route == "clipped":
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
        scaler.update()

    return update


def seen(emulated: Device, update: Callable[[], None]) -> tuple[Counter[str], Counter[str]]:
    """Return the waits and the pinned allocations of some updates, after a warm-up of the same kind."""
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
    enqueued = ("cudaLaunch", "cuLaunch", "cudaMemcpyAsync")
    assert any(name.startswith(enqueued) for name in names), names[:50]
    return waits_of(names), pinned_of(names)


PROFILERS = Counter() if EMULATED else Counter(cudaDeviceSynchronize=1)
"""torch's profiler waits for the device once, when it ends."""
OPTIONS: dict[str, Any] = {"init_scale": 256.0, "growth_interval": 10**6}
"""The scale stays, so no update is sampled out of turn."""


@cache
def of_stock(route: str) -> tuple[Counter[str], Counter[str]]:
    """Return `seen` for stock updates by a route."""
    return seen(device(), updates(torch.amp.GradScaler(PLACE, **OPTIONS), route))


@pytest.mark.parametrize("every", [1, 10**6])
@pytest.mark.parametrize("route", ROUTES)
def test_no_route_adds_a_wait(
    emulated: Device, record_property: Figures, route: str, every: int
) -> None:
    """On each route, sampled or not, monitored updates wait as often as stock ones and pin no more memory."""
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


class Located:
    """A scaler that counts the waits of each of its methods."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler
        self.waits: Counter[tuple[str, str]] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._scaler, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            before = len(device().waits())
            returned = method(*args, **kwargs)
            self.waits.update((name, wait) for wait in device().waits()[before:])
            return returned

        return call


@pytest.fixture(params=["GradScaler", "ShardedGradScaler"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], torch.amp.GradScaler]]:
    """Makes stock scalers: torch's own, or FSDP1's in a process group of this process alone."""
    if request.param == "GradScaler":
        yield lambda: torch.amp.GradScaler(PLACE, **OPTIONS)
        return
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # The fake group of one rank does not communicate, and supports every device.
    distributed.init_process_group(f"{PLACE}:fake", store=FakeStore(), rank=0, world_size=1)
    group = distributed.group.WORLD
    yield lambda: ShardedGradScaler(PLACE, **OPTIONS, process_group=group)
    distributed.destroy_process_group()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("every", [3, 10**6])
@pytest.mark.parametrize("route", ROUTES)
def test_waits_fall_where_they_did(
    make: Callable[[], torch.amp.GradScaler], route: str, every: int
) -> None:
    """Each method of a scaler, and the code between them, waits as often and for the same as without the monitor."""
    waits = []
    for scaler in (make(), ampmon.watch(make(), monitor=ampmon.Config(every=every))):
        located = Located(scaler)
        update = updates(cast("torch.amp.GradScaler", located), route)
        for _ in range(WARM_UP):
            update()
            torch.accelerator.synchronize()
        device().forget()
        located.waits.clear()
        for _ in range(UPDATES):
            update()
        waits.append((located.waits, Counter(device().waits())))
    assert waits[0] == waits[1]
    assert route == "fused" or sum(waits[0][0].values()) >= UPDATES
    monitor: Any = scaler.monitor
    assert monitor.errors == 0

    def in_gear() -> bool:
        update()
        torch.accelerator.synchronize()
        return monitor.gear is not None

    if EMULATED and every > UPDATES:
        wait_for(in_gear)  # a sample's cost on the device may arrive late
    elif EMULATED:
        assert monitor.gear is None


def test_watching_modules_waits_for_nothing(emulated: Device, data_directory: Path) -> None:
    """Finding where losses that are not finite began waits as often as the stock scaler does.

    Origins are recorded from the second such loss on, with an ordinary and with a fused optimizer.
    """

    def lossy(scaler: torch.amp.GradScaler, model: torch.nn.Module, *, fused: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
        for number in range(UPDATES):
            inputs = torch.ones(8, 64, device="cpu").to(PLACE) * (1e5 if number % 2 else 1.0)
            step(scaler, model, optimizer, inputs)
            torch.accelerator.synchronize()

    def layers() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)).to(PLACE)

    for fused in (False, True):
        waits = []
        for ours in (False, True):
            model = layers()
            made = torch.amp.GradScaler(PLACE, **OPTIONS)
            scaler: Any = ampmon.watch(made, model=model) if ours else made
            emulated.forget()
            lossy(scaler, model, fused=fused)
            waits.append(Counter(emulated.waits()))
        assert waits[0] == waits[1]
        assert scaler.monitor.errors == 0
    recorded = recording(data_directory)
    for stream in ("scaler", "scaler-2"):
        skips = [each for each in recorded.of(stream) if each.optimizers[0].skipped]
        assert len(skips) == UPDATES // 2
        assert {each.loss for each in skips} == {"not_finite"}
        # 1e5 overflows in fp16, to which autocast casts it in the first module.
        # After `ENOUGH` such losses modules are no longer watched.
        watched = skips[2 : 1 + ENOUGH]
        assert {(each.origin, each.origin_module) for each in watched} == {("forward", 1)}


@pytest.mark.usefixtures("emulated")
def test_a_wrapped_optimizer_sees_the_skips_that_are_recorded(data_directory: Path) -> None:
    """Accelerate's way to see skipped steps works in both gears and agrees with the ledger."""
    model = torch.nn.Linear(2, 1).to(PLACE)
    scaler = ampmon.GradScaler(PLACE, **OPTIONS, monitor=ampmon.Config(every=10**6))
    optimizer = Accelerated(torch.optim.SGD(model.parameters(), lr=0.1), scaler)
    skipped = []
    for update in range(UPDATES):
        model.zero_grad()
        factor = float("inf") if update in (1, UPDATES - 3) else 1.0
        scaler.scale(model(torch.ones(1, 2).to(PLACE)).sum() * factor).backward()
        optimizer.step()
        torch.accelerator.synchronize()
        skipped.append(optimizer.step_was_skipped)
    assert [index for index, skip in enumerate(skipped) if skip] == [1, UPDATES - 3]
    recorded = recording(data_directory).updates
    assert [update.optimizers[0].skipped for update in recorded] == skipped


def test_a_stream_of_one_s_own_waits_for_nothing(emulated: Device) -> None:
    """`ampmon.stream` takes scales and flags on the device without a wait on the training thread."""
    feed = ampmon.stream("mine", policy=ampmon.Policy(init_scale=4.0))
    scale, found = torch.full((1,), 4.0, device=PLACE), torch.zeros((), device=PLACE)
    waits, _ = seen(emulated, lambda: feed.update(scale, scale, found))
    torch.accelerator.synchronize()
    feed.update(scale, scale / 2, found + 1)
    ampmon.finish(deadline_s=DEADLINE_S)
    assert waits - PROFILERS == Counter()
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
