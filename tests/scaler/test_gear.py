"""The plain gear writes what the full gear would have written, whatever happens in between."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partialmethod
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import distributed
from torch.distributed import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, Optimizer

import ampmon
from ampmon.client import current_run, gear
from ampmon.client.gear import PlainGear
from ampmon.client.monitor import Monitor
from ampmon.probe import gradients
from device.place import EMULATED, PLACE
from older_torch import HAS_FSDP2, NO_FSDP2
from recording import recorded_so_far, recording, recordings
from waiting import wait_for


BY_THE_CLOCK = {"time", "duration", "cost", "memory_peak"}
SAMPLED = {"gradients", "interval", "over_budget", "seq", "origin", "origin_module"}
ON_A_DEVICE = SAMPLED if PLACE != "cpu" else set()
"""On a device the arrival of values decides the order of records, which update is sampled after a scale change, and
which is watched after a loss that is not finite."""
CONFIG = ampmon.Config(every=20, sample="all")
LOOK_EVERY, GROWTH_INTERVAL = 8, 30


class Loop:
    """A training loop; each method is something that training may do around an update.

    It has two optimizers, or one ``fused`` one.
    """

    def __init__(self, *, fused: bool) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)]
        self.model = torch.nn.Sequential(*layers).to(PLACE)
        first, second = ([*layer.parameters()] for layer in self.model)
        self.first: Optimizer = AdamW([*first, *second], lr=0.1, fused=True)
        self.second: Optimizer | None = None
        if not fused:
            self.first, self.second = SGD(first, lr=0.1), Adam(second, lr=0.1)
        self.scaler = ampmon.GradScaler(
            "cpu",
            init_scale=2.0**10,
            growth_interval=GROWTH_INTERVAL,
            model=self.model,
            monitor=CONFIG,
        )

    def backward(self, factor: float = 1.0) -> None:
        self.model.zero_grad()
        # Held until the update ends, as in a script.
        self.loss = self.model(torch.ones(2, 3, device=PLACE)).sum() * factor
        self.scaler.scale(self.loss).backward()

    def restarted(self) -> None:
        self.__init__(fused=self.second is None)  # type: ignore[misc]
        self.steady()

    def _step_second(self) -> None:
        if self.second is not None:
            self.scaler.step(self.second)

    def steady(self) -> None:
        self.backward()
        self.scaler.step(self.first)
        self._step_second()
        self.scaler.update()

    def clipped(self) -> None:
        self.backward()
        self.scaler.unscale_(self.first)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.first)
        self._step_second()
        self.scaler.update()

    def given_a_closure(self) -> None:
        self.backward()
        self.scaler.step(self.first, None)
        self._step_second()
        self.scaler.update()

    def overflow(self) -> None:
        self.backward(float("inf"))
        self.scaler.step(self.first)
        self._step_second()
        self.scaler.update()

    def overflow_of_the_second(self) -> None:
        self.backward()
        self.scaler.step(self.first)
        self.model[1].weight.grad[0, 0] = float("nan")
        self._step_second()
        self.scaler.update()

    def one_alone(self) -> None:
        if self.second is None:
            return
        self.backward()
        self._step_second()
        self.scaler.update()

    def first_alone(self) -> None:
        self.backward()
        self.scaler.step(self.first)
        self.scaler.update()

    def other_order(self) -> None:
        self.backward()
        self._step_second()
        self.scaler.step(self.first)
        self.scaler.update()

    def accumulated(self) -> None:
        self.backward()
        self.scaler.scale(self.model(torch.ones(1, 3, device=PLACE)).sum()).backward()
        self.scaler.step(self.first)
        self._step_second()
        self.scaler.update()

    def losses_in_a_list(self) -> None:
        self.scaler.scale([self.loss])
        self.steady()

    def stepped_twice(self) -> None:
        self.backward()
        self.scaler.step(self.first)
        with pytest.raises(RuntimeError):
            self.scaler.step(self.first)
        self._step_second()
        self.scaler.update()

    def unscaled_twice(self) -> None:
        self.backward()
        self.scaler.unscale_(self.first)
        with pytest.raises(RuntimeError):
            self.scaler.unscale_(self.first)
        self.scaler.step(self.first)
        self._step_second()
        self.scaler.update()

    def step_that_raises(self) -> None:
        self.backward()
        with pytest.raises(TypeError):
            self.scaler.step(self.first, "no closure")
        self._step_second()
        self.scaler.update()

    def scale_by_hand(self) -> None:
        self.backward()
        self.scaler.step(self.first)
        self._step_second()
        self.scaler.update(2.0**9)

    def scale_written_to(self) -> None:
        assert self.scaler._scale is not None
        self.scaler._scale.mul_(0.5)
        self.steady()

    def scale_written_to_late(self) -> None:
        self.backward()
        self.scaler.step(self.first)
        self._step_second()
        assert self.scaler._scale is not None
        self.scaler._scale.mul_(2.0)
        self.scaler.update()

    def scale_replaced(self) -> None:
        assert self.scaler._scale is not None
        self.scaler._scale = self.scaler._scale * 0.5
        self.steady()

    def tracker_replaced(self) -> None:
        assert self.scaler._growth_tracker is not None
        self.scaler._growth_tracker = self.scaler._growth_tracker * 0
        self.steady()

    def state_loaded(self) -> None:
        self.scaler.load_state_dict(self.scaler.state_dict())

    def moved_by_hand(self) -> None:
        self.scaler.update(2.0**8)

    def another_rule(self) -> None:
        self.scaler.set_growth_interval((self.scaler.get_growth_interval() - 16) % 90)

    def another_rate(self) -> None:
        self.first.param_groups[0]["lr"] *= 0.9

    def another_optimizer(self) -> None:
        # Delete it first, so that the new one may get its id.
        fused = self.second is None
        del self.first
        if fused:
            self.first = AdamW([*self.model.parameters()], lr=0.1, fused=True)
        else:
            self.first = SGD([*self.model[0].parameters()], lr=0.1)

    def another_optimizer_before_update(self) -> None:
        self.backward()
        self.scaler.step(self.first)
        self._step_second()
        self.another_optimizer()
        self.scaler.update()

    def another_parameter(self) -> None:
        self.model.append(torch.nn.Linear(2, 2).to(PLACE))
        optimizer = self.second or self.first
        optimizer.add_param_group({"params": [*self.model[-1].parameters()]})

    def logged(self) -> None:
        ampmon.log({"value": 1.0})

    def logged_within(self) -> None:
        self.backward()
        ampmon.log({"value": 2.0})
        self.scaler.step(self.first)
        self._step_second()
        self.scaler.update()


WHAT = [name for name in vars(Loop) if not name.startswith("_") and name != "backward"]
OTHERS = st.sampled_from([name for name in WHAT if name != "steady"])
STRETCH = st.integers(1, 3 * LOOK_EVERY).map(lambda updates: ["steady"] * updates)
EACH = [name for each in WHAT for name in ("restarted", *["steady"] * 9, each, *["steady"] * 5)]
"""Each of them at least once while the plain gear is engaged."""
SCHEDULES = st.lists(STRETCH | OTHERS.map(lambda name: [name]), min_size=2, max_size=12).map(
    lambda parts: ["steady", *(name for part in parts for name in part)]
)


def _leave_out_what_varies(record: dict[str, Any], *, unsure: bool) -> None:
    """Delete what varies between runs of a loop; if ``unsure``, also known culprits."""
    for name in (BY_THE_CLOCK | ON_A_DEVICE) & record.keys():
        del record[name]
    for step in record.get("optimizers", ()):
        if PLACE != "cpu":  # a sample also counts elements, and a late record may know the order
            culprits = sorted(culprit[0] for culprit in step.get("culprits", ()))
            step["culprits"] = [] if unsure else culprits
            step.pop("culprit_order", None)
            if unsure:
                step.pop("culprit_parameters", None)


def content(
    directory: Path, schedule: list[str], *, fused: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Return what is recorded of a loop, without clock values, and what the monitor then shows."""
    ampmon.init("gears", dir=directory, mode="offline")
    loop = Loop(fused=fused)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ampmon.client.gear.LOOK_EVERY", LOOK_EVERY)
        for name in schedule:
            getattr(loop, name)()
    monitor = loop.scaler.monitor
    assert monitor is not None
    current_run.finish()
    names = {"updates", "skips", "last_skip", "errors", "dropped"}
    if unsure := fused and PLACE != "cpu":  # only samples name a fused optimizer's culprits
        names.remove("last_skip")
    shown = {name: getattr(monitor, name) for name in names}
    records = [msgspec.to_builtins(record) for record in recording(directory).messages[1:]]
    for record in records:
        _leave_out_what_varies(record, unsure=unsure)
    # The maintenance thread's events on a slow or quick disk also depend on the clock.
    kept = [each for each in records if each["type"] != "stream" and each.get("kind") != "spool"]
    for record in kept:
        if not record["stream"]:
            record.pop("seq", None)
    return kept if PLACE == "cpu" else sorted(kept, key=repr), shown


@pytest.mark.parametrize("fused", [False, True])
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=SCHEDULES)
@example(schedule=[*["steady"] * 20, "step_that_raises", *["steady"] * 9])
@example(schedule=["steady"] * (GROWTH_INTERVAL + 9))
@example(schedule=EACH)
def test_both_gears_tell_the_same(
    tmp_path_factory: pytest.TempPathFactory, schedule: list[str], *, fused: bool
) -> None:
    """Without the plain gear the same loop gives the same records in the same order, and the same monitor values."""
    plain = content(tmp_path_factory.mktemp("plain"), schedule, fused=fused)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainGear, "engage", lambda *_: None)
        full = content(tmp_path_factory.mktemp("full"), schedule, fused=fused)
    assert plain == full


@dataclass(frozen=True)
class Recipe:
    """A way to train, as named in torch's documentation of mixed precision."""

    optimizers: int = 1
    batches: int = 1
    clips: bool = False
    penalty: bool = False
    parallel: str = ""
    arguments: tuple[None, ...] = ()
    """Further arguments of `step`."""

    def update(self, model: torch.nn.Module) -> Callable[[torch.amp.GradScaler], None]:
        """Return a function that runs one update of ``model``."""
        parameters = list(model.parameters())
        groups = [parameters[index :: self.optimizers] for index in range(self.optimizers)]
        optimizers = [SGD(group, lr=0.01) for group in groups]
        inputs = torch.ones(1, 2).to(PLACE)

        def update(scaler: torch.amp.GradScaler) -> None:
            for _ in range(self.batches):
                loss = model(inputs).sum()
                if self.penalty:
                    scaled = torch.autograd.grad(scaler.scale(loss), parameters, create_graph=True)
                    loss = loss + sum(each.square().sum() for each in scaled) / scaler.get_scale()
                scaler.scale(loss).backward()
            for optimizer in optimizers:
                if self.clips:
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                scaler.step(optimizer, *self.arguments)
            scaler.update()
            model.zero_grad()

        return update


RECIPES = {
    "typical": Recipe(),
    "clipping": Recipe(clips=True),
    "accumulation": Recipe(batches=3),
    "accumulation with clipping": Recipe(batches=3, clips=True),
    "gradient penalty": Recipe(penalty=True),
    "several optimizers": Recipe(optimizers=2),
    "several optimizers with clipping": Recipe(optimizers=2, clips=True),
    "Accelerate": Recipe(arguments=(None,)),
    "DDP": Recipe(parallel="DDP"),
    "FSDP2": Recipe(parallel="FSDP2"),
    "FSDP2 with clipping": Recipe(parallel="FSDP2", clips=True),
}


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Iterator[torch.nn.Module]:
    """The model of a recipe, in a process group of its own if the recipe is parallel."""
    model = torch.nn.Linear(2, 2).to(PLACE)
    parallel = RECIPES[request.node.callspec.params["name"]].parallel
    if not parallel:
        yield model
        return
    if EMULATED:
        pytest.skip("no process group knows the emulated device")
    if parallel == "FSDP2" and not HAS_FSDP2:
        pytest.skip(NO_FSDP2)
    backend = "nccl" if PLACE == "cuda" else "gloo"
    distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if parallel == "DDP":
        model = DistributedDataParallel(model)
        yield model
        # These hold the process group; torch may deadlock if they are freed after it.
        model.reducer = model.logger = None
    else:
        from torch.distributed.fsdp import fully_shard  # from torch 2.6 on

        fully_shard(model, mesh=init_device_mesh(PLACE, (1,)))
        yield model
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", RECIPES)
def test_the_plain_gear_takes_nearly_all(
    monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module, name: str
) -> None:
    """In each recipe, after the first updates, one steady update in `LOOK_EVERY` takes the full gear.

    No other update walks over gradients, except for kernels that search for culprits on a device before clipping.
    """
    monkeypatch.setattr(gear, "LOOK_EVERY", LOOK_EVERY)
    update = RECIPES[name].update(model)
    scaler = ampmon.GradScaler(PLACE, init_scale=4.0, monitor=ampmon.Config(every=10**6))
    monitor = scaler.monitor
    assert monitor is not None

    def engaged() -> bool:
        update(scaler)
        return monitor.gear is not None

    wait_for(engaged)
    full: list[int] = []
    walked: list[int] = []
    after_update, held = Monitor.after_update, gradients._held

    def counted(monitor: Monitor, *given: Any) -> None:
        full.append(done)
        after_update(monitor, *given)

    def walk(optimizer: torch.optim.Optimizer) -> Any:
        walked.append(done)
        return held(optimizer)

    monkeypatch.setattr(Monitor, "after_update", counted)
    monkeypatch.setattr(gradients, "_held", walk)
    for done in range(4 * LOOK_EVERY):  # noqa: B007 - `counted` and `walk` read it
        update(scaler)
    assert [after - before for before, after in pairwise(full)] == [LOOK_EVERY] * 3
    assert PLACE == "cuda" or not walked
    assert monitor.errors == 0


def test_a_record_is_on_disk_when_its_update_returns(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the first sample has arrived, a record is on disk when its update returns, on a device too."""
    monkeypatch.setattr("ampmon.spool.writer.SLOW_S", math.inf)  # also on a busy machine
    model = torch.nn.Linear(2, 2).to(PLACE)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler(PLACE, init_scale=4.0, monitor=ampmon.Config(every=10**6))
    for update in range(3 * gear.LOOK_EVERY):
        scaler.scale(model(torch.ones(1, 2, device=PLACE)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if update >= gear.LOOK_EVERY and not update % 5:
            assert len(recorded_so_far(data_directory).updates) == update + 1


class Halving(torch.amp.GradScaler):
    """A scaler that halves its scale at every eighth update."""

    updates = 0

    def update(self, *given: Any) -> None:
        super().update(*given)
        self.updates += 1
        if self.updates % 8 == 0:
            self._scale *= 0.5


def test_a_scale_that_a_subclass_moves_is_recorded(data_directory: Path) -> None:
    """The records of a scaler with an `update` of its own have the scale that this leaves."""
    update = RECIPES["typical"].update(torch.nn.Linear(2, 2).to(PLACE))
    scaler = ampmon.watch(Halving(PLACE, init_scale=2.0**20))
    scales = []
    for _ in range(20):
        update(scaler)
        scales.append(scaler.get_scale())
    assert [each.scale_after for each in recording(data_directory).updates] == scales


def test_another_run_gets_the_updates_that_follow_it(data_directory: Path) -> None:
    """A run that begins while the plain gear is engaged records all updates from then on."""
    loop = Loop(fused=False)
    assert loop.scaler.monitor is not None
    for _ in range(12):
        loop.steady()
    assert PLACE != "cpu" or loop.scaler.monitor.gear is not None
    ampmon.init(name="another")
    for _ in range(7):
        loop.steady()
    assert [len(each.updates) for each in recordings(data_directory)] == [12, 7]


class Partial(torch.amp.GradScaler):
    """A scaler with a method that is no plain function."""

    step = partialmethod(torch.amp.GradScaler.step)


def test_a_scaler_with_other_methods_than_functions_trains() -> None:
    """A scaler whose `step` is a `partialmethod` trains and is recorded, if only in the full gear."""
    update = RECIPES["typical"].update(torch.nn.Linear(2, 2).to(PLACE))
    scaler = ampmon.watch(Partial(PLACE, init_scale=4.0))
    for _ in range(12):
        update(scaler)
    monitor = scaler.monitor
    current_run.finish()
    assert (monitor.updates, monitor.errors) == (12, 0)


class Shared(ampmon.GradScaler):
    """A scaler that learns of overflows elsewhere, as by a reduction over ranks."""

    elsewhere = False

    def unscale_(self, optimizer: Optimizer) -> None:
        super().unscale_(optimizer)
        if self.elsewhere:
            for flag in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
                flag.fill_(1.0)


def test_skips_that_a_subclass_decides_are_recorded(data_directory: Path) -> None:
    """A user's subclass that changes found_inf after unscaling has all its skips in the records."""
    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer = SGD([parameter], lr=0.1)
    scaler = Shared("cpu", init_scale=2.0**10, growth_interval=1000)
    scales = []
    for update in range(40):
        optimizer.zero_grad()
        scaler.scale(parameter.sum()).backward()
        scaler.elsewhere = update in (15, 25)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    updates = recording(data_directory).updates
    skipped = [each.ordinal for each in updates if each.optimizers[0].skipped]
    assert skipped == [15, 25]
    assert [each.scale_after for each in updates] == scales


def test_a_signal_within_a_record_takes_no_seq_twice(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler's record, made during an update's record, takes no seq twice and leaves no gap."""
    model = torch.nn.Linear(2, 2).to(PLACE)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler(PLACE, init_scale=4.0, monitor=ampmon.Config(every=10**6))
    signals = iter([signal.SIGUSR1])

    def interrupted() -> int:
        for each in signals:
            signal.raise_signal(each)
        return time.time_ns()

    def engaged() -> bool:
        scaler.scale(model(torch.ones(1, 2, device=PLACE)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return scaler.monitor is not None and scaler.monitor.gear is not None

    wait_for(engaged)
    before = signal.signal(signal.SIGUSR1, lambda *_: ampmon.log({"signal": 1.0}))
    try:
        clock = SimpleNamespace(time_ns=interrupted, monotonic=time.monotonic)
        monkeypatch.setattr("ampmon.client.recorder.time", clock)
        assert engaged()
    finally:
        signal.signal(signal.SIGUSR1, before)
    recorded = recording(data_directory)
    of_scaler = [each for each in recorded.messages if getattr(each, "stream", None) == "scaler"]
    seqs = sorted(each.seq for each in of_scaler if hasattr(each, "seq"))
    assert seqs == list(range(len(seqs)))
    assert {"signal": 1.0} in [each.values for each in recorded.scalars]


def test_an_optimizer_with_the_id_of_another_is_another(data_directory: Path) -> None:
    """An optimizer that gets the id of a deleted one has a name of its own at once."""
    model = torch.nn.Linear(2, 2).to(PLACE)
    scaler = ampmon.GradScaler(PLACE, init_scale=4.0, monitor=ampmon.Config(every=10**6))
    assert scaler.monitor is not None
    ids: list[int] = []
    updates: list[int] = []
    while len(set(ids)) == len(ids) < 100:  # until one has the id of another
        optimizer = SGD(model.parameters(), lr=0.1)
        ids.append(id(optimizer))
        updates.append(0)
        while updates[-1] < 12 or (scaler.monitor.gear is None and updates[-1] < 1000):
            updates[-1] += 1
            scaler.scale(model(torch.ones(1, 2).to(PLACE)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            torch.accelerator.synchronize() if PLACE != "cpu" else None
        assert scaler.monitor.gear is not None
        del optimizer
    assert len(set(ids)) < len(ids)
    names = [update.optimizers[0].optimizer for update in recording(data_directory).updates]
    expected = ["SGD", *(f"SGD-{number}" for number in range(2, len(ids) + 1))]
    assert names == [
        name for name, count in zip(expected, updates, strict=True) for _ in range(count)
    ]
