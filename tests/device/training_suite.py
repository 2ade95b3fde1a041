"""Training on a device is bit for bit as with the stock scaler, and waits no more often.

Runs on the emulated device in a process that test_device.py starts, and on CUDA by `make gpu`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

import ampmon
from ampmon.client import fused as fused_updates
from ampmon.client.gear import LOOK_EVERY
from ampmon.probe.accelerator import on
from ampmon.probe.ring import JoinedReadback, Slot
from device.place import EMULATED, PLACE, Device, at_rest, device
from recording import Recording, recording
from scaler.test_parity import CASES, HALF, RARELY, STEADY, STEADY_UPDATES, Case, bits, train
from scaler.test_parity import UPDATES as CELL_UPDATES
from waiting import wait_for


__all__ = ["at_rest"]  # a fixture
CELLS = HALF if EMULATED else CASES


def counted(
    scaler: torch.amp.GradScaler, case: Case, updates: int = CELL_UPDATES
) -> tuple[dict[str, Any], list[str]]:
    """Return what training leaves behind, and what it waited for."""
    device().forget()
    left = train(scaler, case, updates)
    return left, device().waits()


@pytest.fixture(scope="module")
def stock() -> list[tuple[dict[str, Any], list[str]]]:
    """What the stock scaler leaves behind in each cell, and what it waited for."""
    return [counted(torch.amp.GradScaler(PLACE, **case.arguments), case) for case in CELLS]


@pytest.mark.parametrize(("every", "step"), [(1, 1), (3, 3)])
def test_parity_under_jitter(
    emulated: Device, stock: list[tuple[dict[str, Any], list[str]]], every: int, step: int
) -> None:
    """Every cell ends bit for bit as the stock scaler's, and waits for the same operations in the same order."""
    emulated.jitter(200)
    for case, (expected, waits) in list(zip(CELLS, stock, strict=True))[::step]:
        scaler = ampmon.GradScaler(PLACE, **case.arguments, monitor=ampmon.Config(every=every))
        ours, own_waits = counted(scaler, case)
        assert own_waits == waits, case
        assert bits(expected, ours), case
        assert scaler.monitor is None or scaler.monitor.errors == 0


def test_parity_in_the_plain_gear(emulated: Device) -> None:
    """Cells in which most updates take the plain gear end as the stock scaler's under jitter, and wait as often."""
    emulated.jitter(200)
    for case in STEADY:
        expected, waits = counted(torch.amp.GradScaler(PLACE), case, STEADY_UPDATES)
        scaler = ampmon.GradScaler(PLACE, monitor=RARELY)
        ours, own_waits = counted(scaler, case, STEADY_UPDATES)
        assert own_waits == waits, case
        assert bits(expected, ours), case
        assert scaler.monitor is not None
        assert scaler.monitor.errors == 0
        assert case.overflow or scaler.monitor.gear is not None


UPDATES = 24
BEHIND = UPDATES if EMULATED else 4
"""Updates enqueued behind a paused device: after about a thousand launches a GPU makes the host wait."""
OVERFLOW = 5 if EMULATED else 0
"""A sampled update in each case; in others, culprits are searched for only within the budget."""


OVERFLOWS = [80, 81, 150]


def steady(directory: Path, *, clips: bool) -> list[Any]:
    """Train with three overflows, assert that waits are the stock scaler's, and return the recorded updates."""
    waits = []
    for maker, options in (
        (torch.amp.GradScaler, {}),
        (ampmon.GradScaler, {"monitor": ampmon.Config(every=100, budget=1)}),
    ):
        model = torch.nn.Linear(2, 2).to(PLACE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = maker(PLACE, init_scale=4.0, growth_interval=90, **options)
        device().forget()
        for update in range(3 * LOOK_EVERY):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 2).to(PLACE)).sum()).backward()
            if update in OVERFLOWS:
                model.weight.grad.fill_(float("inf"))
            if clips:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        waits.append(device().waits())
    assert waits[0] == waits[1]
    assert scaler.monitor.errors == 0
    updates = recording(directory).updates
    assert [update.ordinal for update in updates if update.event == "backoff"] == OVERFLOWS
    return updates


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("clips", [False, True])
def test_updates_about_which_nothing_is_new_wait_as_stock(
    data_directory: Path, clips: bool
) -> None:
    """With an ordinary optimizer all updates, overflowed and sampled ones too, wait as with the stock scaler."""
    updates = steady(data_directory, clips=clips)
    # Without kernels no search for culprits runs before clipping.
    assert clips or updates[80].optimizers[0].culprits


class Training:
    """Trains a small model with a fused optimizer, which never makes the host wait."""

    def __init__(self, *, passes: int = 1, lr: float = 1e-2, **options: Any) -> None:
        torch.manual_seed(0)
        self.passes = passes
        layers = [torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1)]
        self.model = torch.nn.Sequential(*layers).to(PLACE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, fused=True)
        self.inputs = torch.randn(UPDATES, 4, 8).to(PLACE)
        name = options.pop("name", None)
        config = ampmon.Config(every=options.pop("every", 1), budget=1, **options)
        self.scaler = ampmon.GradScaler(
            PLACE,
            model=self.model,
            init_scale=2.0**10,
            growth_interval=5,
            monitor=config,
            name=name,
        )

    def update(self, number: int) -> None:
        """Run one update. The one with the number `OVERFLOW` overflows."""
        self.optimizer.zero_grad()
        for _ in range(self.passes):
            with torch.autocast(PLACE, dtype=torch.float16):
                loss = self.model(self.inputs[number]).float().square().mean()
            self.scaler.scale(loss).backward()
        if number == OVERFLOW:
            self.model[0].weight.grad[0].fill_(float("inf"))
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def settle(self) -> None:
        """Run updates until the plain gear takes the next ones."""
        self.scaler.set_growth_interval(1000)

        def settled() -> bool:
            self.update(OVERFLOW + 1)
            return self.scaler.monitor.gear is not None

        wait_for(settled, "for the plain gear")


def content(
    recorded: Recording, *, gradients: bool = True, stream: str = "scaler"
) -> list[tuple[Any, ...]]:
    """Return what update records say, without times, and on request without samples, whose schedule may vary."""
    return [
        (
            update.ordinal,
            update.scale,
            update.scale_after,
            update.event,
            [(taken.skipped, recorded.names(taken, stream)) for taken in update.optimizers],
            update.gradients.histogram if gradients and update.gradients else None,
        )
        for update in recorded.of(stream)
    ]


@pytest.mark.parametrize("options", [{}, {"every": 5}, {"activations": 1}, {"passes": 3}])
def test_a_paused_device_is_waited_for_by_nobody(
    emulated: Device, data_directory: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, int]
) -> None:
    """Updates are enqueued behind a paused device without a wait or a record, and all records are right afterwards."""
    training = Training(**options)
    for number in range(BEHIND):
        training.update(number)
        torch.accelerator.synchronize()
    expected = content(recording(data_directory), gradients="every" not in options)
    monkeypatch.setenv("AMPMON_DIR", str(data_directory / "paused"))
    training = Training(**options)
    torch.accelerator.synchronize()
    emulated.forget()
    with emulated.paused():
        for number in range(BEHIND):
            training.update(number)
        assert emulated.waits() == []
        assert training.scaler.monitor.updates == 0
    assert training.scaler.monitor.errors == 0
    recorded = content(recording(data_directory / "paused"), gradients="every" not in options)
    assert emulated.waits() == []
    assert len(recorded) == BEHIND
    assert [update[3] for update in recorded].count("backoff") == 1
    assert recorded == expected


@pytest.mark.usefixtures("emulated")
def test_a_scale_set_by_hand_between_updates_is_reported(data_directory: Path) -> None:
    """`update(new_scale)` without a step, after updates of a fused optimizer, is an event and no error."""
    training = Training()
    for number in range(4):
        training.update(number)
        training.scaler.update(2.0**number)
    assert training.scaler.monitor.errors == 0
    moves = recording(data_directory).events("manual_set")
    expected = [(number + 1, 2.0**number) for number in range(4)]
    assert [(move.ordinal, move.detail["scale_after"]) for move in moves] == expected


def fused(
    directory: Path, overflows: Collection[int], window_ns: int, interval: int
) -> list[tuple[Any, ...]]:
    """Return what `UPDATES` record, some with overflows, from the plain gear on. A fifth have an infinite loss."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AMPMON_DIR", str(directory))
        patched.setattr("ampmon.client.fused.WINDOW_NS", window_ns)
        training = Training(every=10**6)
        training.settle()
        training.scaler.set_growth_interval(interval)
        for number in range(UPDATES):
            training.optimizer.zero_grad()
            factor = float("inf") if number in overflows and number % 5 == 0 else 1.0
            with torch.autocast(PLACE, dtype=torch.float16):
                loss = training.model(training.inputs[number]).float().square().mean() * factor
            training.scaler.scale(loss).backward()
            if number in overflows:
                training.model[0].weight.grad[0].fill_(float("inf"))
            training.scaler.step(training.optimizer)
            training.scaler.update()
        updates = recording(directory).updates[-UPDATES:]
    assert training.scaler.monitor.errors == 0
    return [
        (
            update.scale,
            update.scale_after,
            update.event,
            [taken.skipped for taken in update.optimizers],
            update.loss,
        )
        for update in updates
    ]


@pytest.mark.parametrize(
    ("overflows", "interval"),
    [([], 1000), ([9], 1000), ([0, 7, 8, 20, 21, 22, 23], 1000), ([3, 10], 5), (range(24), 5)],
)
def test_updates_that_wait_together_are_recorded_as_alone(
    emulated: Device, data_directory: Path, overflows: Collection[int], interval: int
) -> None:
    """Updates of a fused optimizer that share a reading have the skips, growths and losses of single ones."""
    emulated.jitter(50)
    alone, together = (
        fused(data_directory / str(window_ns), overflows, window_ns, interval)
        for window_ns in (0, 500_000_000)
    )
    assert together == alone
    assert [number for number, each in enumerate(alone) if each[3] == [True]] == list(overflows)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("aside", [False, True])
def test_a_run_that_ends_waits_for_updates_that_wait_together(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch, *, aside: bool
) -> None:
    """Updates whose reading was not requested when training ended are recorded, also from a stream of their own."""
    monkeypatch.setattr("ampmon.client.fused.WINDOW_NS", 300_000_000)
    training = Training(every=10**6)
    training.settle()
    stream = torch.Stream(PLACE) if aside else None
    with on(stream):
        for _ in range(3):
            training.update(OVERFLOW + 1)
    updates = training.scaler.monitor._stream.ordinal
    assert len(recording(data_directory).updates) == updates
    assert (training.scaler.monitor.dropped, training.scaler.monitor.errors) == (0, 0)


@pytest.mark.usefixtures("emulated")
def test_a_state_loaded_behind_updates_that_wait_together_is_not_taken_for_theirs(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the scale is overwritten before the reading, the updates before it still show the scale that they used."""
    monkeypatch.setattr("ampmon.client.fused.WINDOW_NS", 500_000_000)
    training = Training(every=10**6)
    training.settle()
    for _ in range(3):
        training.update(OVERFLOW + 1)
    training.scaler.load_state_dict({**training.scaler.state_dict(), "scale": 8.0})
    training.update(OVERFLOW + 1)
    updates = recording(data_directory).updates
    assert [update.scale for update in updates[-4:]] == [2.0**10] * 3 + [8.0]
    assert training.scaler.monitor.errors == 0


@pytest.mark.skipif(not EMULATED, reason="a GPU's queue is too short")
def test_a_device_far_behind_ends_the_plain_gear(emulated: Device, data_directory: Path) -> None:
    """While many records wait for the device, each update's found_inf is requested at once, and none is lost."""
    training = Training(every=10**6)
    training.settle()
    torch.accelerator.synchronize()
    with emulated.paused():
        for number in range(LOOK_EVERY + 6):
            training.update(number % UPDATES)
        assert training.scaler.monitor.gear is None
    updates = recording(data_directory).updates
    assert len(updates) == training.scaler.monitor._stream.ordinal
    assert [update.event for update in updates].count("backoff") == 3
    assert training.scaler.monitor.errors == 0


@pytest.mark.usefixtures("emulated")
def test_a_capture_gets_nothing_of_updates_that_wait_together(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a capture begins behind updates whose reading was not requested, they are recorded without a replay."""
    training = Training(every=10**6)
    training.optimizer.param_groups[0]["capturable"] = True
    training.settle()
    monkeypatch.setattr("ampmon.client.fused.WINDOW_NS", 10**12)
    for _ in range(3):
        training.update(OVERFLOW + 1)
    batch = training.scaler.monitor.gear._fused._batch
    with device().capture():
        training.update(OVERFLOW + 1)
    batch._until = 0
    updates = training.scaler.monitor._stream.ordinal
    assert len(recording(data_directory).updates) == updates
    assert training.scaler.monitor.errors == 0


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("failing", ["JoinedReadback.end", "Readback"])
def test_a_reading_that_fails_once_is_repeated(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """An error in reading the state or found_inf is counted, and loses no record."""
    monkeypatch.setattr("ampmon.client.fused.WINDOW_NS", 0)
    training = Training(every=10**6)
    training.settle()
    fails = iter([True])

    def once(*arguments: Any) -> Any:
        if next(fails, False):
            raise RuntimeError
        return stock(*arguments)

    *owner, name = failing.split(".")
    place = getattr(fused_updates, owner[0]) if owner else fused_updates
    stock = getattr(place, name)
    monkeypatch.setattr(place, name, once)
    for number in (OVERFLOW, OVERFLOW + 1, OVERFLOW + 1):
        training.update(number)
        torch.accelerator.synchronize()
    updates = recording(data_directory).updates
    assert [update.ordinal for update in updates] == list(range(len(updates)))
    assert [update.event for update in updates[-3:]] == ["backoff", "steady", "steady"]
    assert training.scaler.monitor.errors == 1


@pytest.mark.usefixtures("emulated")
def test_a_joined_copy_that_cannot_end_may_end_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the event behind a full buffer fails once, the last tensors take their places again."""
    joined, ones = JoinedReadback(torch.device(PLACE, 0)), torch.ones(16, device=PLACE)
    joined.add(list(ones[2:]))
    with monkeypatch.context() as patched:
        patched.setattr(Slot, "mark", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            joined.end(*ones[:2])
    joined.end(*ones[:2])
    assert joined.values() == [1.0] * 16


class Incomparable(float):
    """A learning rate that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise TypeError

    __hash__ = float.__hash__


@pytest.mark.usefixtures("emulated", "data_directory")
def test_a_rate_that_cannot_be_compared_stops_no_step() -> None:
    """With a fused optimizer too, an error in comparing learning rates ends the checks of the loop, not the step."""
    training = Training(every=10**6)
    training.settle()
    training.optimizer.param_groups[0]["lr"] = Incomparable(1e-2)
    with pytest.warns(ampmon.AmpmonWarning, match="TypeError"):
        training.update(OVERFLOW + 1)


@pytest.mark.usefixtures("emulated")
def test_an_update_that_raises_may_be_repeated(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an `update()` that raised, another loss is scaled. The next `update()` records the state of both losses."""

    def raising(*_: Any) -> None:
        raise RuntimeError

    training = Training(every=10**6)
    training.settle()
    with monkeypatch.context() as patched:
        patched.setattr(torch, "_amp_update_scale_", raising)
        with pytest.raises(RuntimeError):
            training.update(OVERFLOW + 1)
    loss = torch.tensor(float("inf"), device=PLACE)
    training.scaler.scale(loss)
    states = training.scaler._per_optimizer_states.values()
    for flag in (each for state in states for each in state["found_inf_per_device"].values()):
        flag.fill_(1.0)
    training.scaler.update()
    *_, last = recording(data_directory).updates
    assert (last.event, last.loss) == ("backoff", "not_finite")
    assert training.scaler.monitor.errors == 0


def test_passes_are_sampled_one_by_one(
    emulated: Device, data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If three passes bring equal gradients, a sample reports those of one pass, however late the device is."""
    said = []
    for passes in (1, 3):
        monkeypatch.setenv("AMPMON_DIR", str(data_directory / str(passes)))
        training = Training(passes=passes, lr=0.0)
        emulated.jitter(200)
        for number in range(5):
            training.update(number)
        said.append(recording(data_directory / str(passes)))
        assert training.scaler.monitor.errors == 0
    for number in range(1, 5):
        one, joined = (each.statistics(number) for each in said)
        assert joined.grid_mask.tolist() == one.grid_mask.tolist()
        assert joined.histogram.tolist() == one.histogram.tolist()
        assert joined.amax.tolist() == one.amax.tolist()
        assert joined.sum_squares.tolist() == pytest.approx((9 * one.sum_squares).tolist())


def test_logged_tensors_wait_for_nobody(emulated: Device, data_directory: Path) -> None:
    """Logging a tensor behind a paused device does not wait, and keeps the tensor's value at that time."""
    loss = torch.ones((), device=PLACE)
    ampmon.init()
    with emulated.paused():
        ampmon.log({"loss": loss})
        loss.add_(5)
        assert emulated.waits() == []
    assert [each.values for each in recording(data_directory).scalars] == [{"loss": 1.0}]


def test_values_logged_in_inference_mode_leave_later_ones_alone(
    emulated: Device, data_directory: Path
) -> None:
    """After a value from a device was logged in inference mode, values outside of it are logged as ever."""
    loss = torch.ones((), device=PLACE)
    ampmon.init()
    with torch.inference_mode():
        ampmon.log({"validation": loss + 1})
    ampmon.log({"loss": loss})
    values = [each.values for each in recording(data_directory).scalars]
    assert values == [{"validation": 2.0}, {"loss": 1.0}]


def test_the_gradients_of_a_stream_wait_for_nobody(emulated: Device, data_directory: Path) -> None:
    """On an `ampmon.stream`, samples of gradients and culprits of an overflow add no wait."""
    model = torch.nn.Linear(2, 2).to(PLACE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feed = ampmon.stream("mine")
    feed.watch(optimizer, lambda: {id(model.weight): "weight"}, sharded=False)
    inputs, scale = torch.ones(1, 2).to(PLACE), torch.tensor([8.0]).to(PLACE)
    emulated.forget()
    for update in range(6):
        optimizer.zero_grad()
        (model(inputs).sum() * 8.0).backward()
        if overflows := update == 3:
            model.weight.grad.fill_(float("inf"))
        feed.unscaling()
        if overflows:
            feed.overflowed()
        feed.update(scale, scale, overflows)
    assert emulated.waits() == []
    ampmon.finish()
    updates = recording(data_directory).of("mine")
    assert [update.ordinal for update in updates] == list(range(6))
    assert updates[0].gradients is not None
    assert [each.parameter for each in updates[3].optimizers[0].culprits] == [0]
    assert feed.errors == 0


def test_a_capture_in_the_midst_of_an_iteration(emulated: Device, data_directory: Path) -> None:
    """A capture that begins after `unscale_` frees none of the iteration's pinned memory."""
    training = Training()
    training.update(0)
    training.scaler.scale(training.model(training.inputs[1]).square().mean()).backward()
    training.scaler.unscale_(training.optimizer)
    with emulated.capture():
        training.scaler.update()
    assert emulated.violations() == []
    training.optimizer.zero_grad()
    training.update(2)
    assert training.scaler.monitor.errors == 0
    assert len(recording(data_directory).updates) == 2


def test_a_capture_is_left_alone(emulated: Device, data_directory: Path) -> None:
    """A captured update contains nothing of the monitor and is counted; later updates are recorded."""
    training = Training()
    training.optimizer.param_groups[0]["capturable"] = True
    for number in range(3):
        training.update(number)
    with emulated.capture() as graph:
        training.update(3)
    assert emulated.violations() == []
    before = training.model[0].weight.detach().clone()
    graph.replay()
    training.update(4)
    assert not torch.equal(before, training.model[0].weight)
    assert training.scaler.monitor.captured == 1
    assert training.scaler.monitor.errors == 0
    assert len(recording(data_directory).updates) == 4
