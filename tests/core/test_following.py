"""A scaler's state that is followed on the host is exactly torch's, or unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from ampmon.client.following import ScaleFollower, moved
from ampmon.client.iteration import Iteration, taken
from ampmon.training.outcome import AnyReading, Reading


SCALES = st.floats(2.0**-140, 2.0**127, width=32) | st.just(math.inf)
FACTORS = st.floats(1e-3, 1e3)
TRACKERS = st.integers(0, 5)


@given(SCALES, TRACKERS, st.booleans(), FACTORS, FACTORS, st.integers(1, 6))
def test_a_move_is_torchs(
    scale: float, tracker: int, found: bool, growth: float, backoff: float, interval: int
) -> None:
    """`moved` gives the same scale and tracker as `torch._amp_update_scale_`, bit for bit."""
    tensor, count = torch.tensor([scale]), torch.tensor([tracker], dtype=torch.int32)
    flag = torch.tensor([float(found)])
    torch._amp_update_scale_(tensor, count, flag, growth, backoff, interval)
    assert moved((scale, tracker), found, (growth, backoff, interval)) == (
        tensor.item(),
        count.item(),
    )


class Scaler(torch.amp.GradScaler):
    """A scaler whose state a follower reads as if from a device: each reading arrives when the test says so."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=8.0, growth_interval=3)
        self.scale(torch.zeros(()))
        self.failed: list[str] = []
        self.requested: list[Late] = []
        self.follower = ScaleFollower(self, lambda where, _: self.failed.append(where), self.read)

    def read(self, scaler: Any, steps: Iterable[int]) -> AnyReading:
        self.requested.append(Late(Reading(*self.state, [False for _ in steps])))
        return self.requested[-1]

    def train(self, found: bool | None) -> tuple[AnyReading, AnyReading]:
        """Return the states before and after an update. ``found``: whether it overflows; None if that stays unknown."""
        iteration = Iteration(steps={1: taken("SGD", "plain")}, found={1: bool(found)})
        self._per_optimizer_states[1 if found is not None else 2]["found_inf_per_device"] = {
            torch.device("cpu"): torch.tensor([float(bool(found))])
        }
        iteration.before = self.follower.before(self, iteration)
        self.update()
        return iteration.before, self.follower.after(self, iteration, manual=False)[0]

    @property
    def state(self) -> tuple[float, int]:
        return self.get_scale(), self._get_growth_tracker()


class Late:
    """A reading that has not arrived yet."""

    def __init__(self, reading: Reading) -> None:
        self._reading, self.arrived = reading, False

    def ready(self) -> bool:
        return self.arrived

    def result(self) -> Reading:
        assert self.arrived
        return self._reading


def known(reading: AnyReading) -> tuple[float, int] | None:
    """Return a state that was followed, or None if it was requested from the device."""
    return (reading.scale, reading.growth_tracker) if isinstance(reading, Reading) else None


STEPS = st.sampled_from(["update", "overflow", "unknown", "touch", "rule", "read", "late"])


@given(st.lists(STEPS, max_size=60))
def test_what_is_reported_is_what_is_there(steps: list[str]) -> None:
    """Whatever happens in between, a known state is the scaler's own, and a new reading makes the state known again."""
    scaler = Scaler()
    for step in steps:
        if step == "touch":
            scaler._scale.mul_(0.5)  # type: ignore[union-attr]
        elif step == "rule":
            scaler.set_growth_interval(scaler.get_growth_interval() + 1)
        elif step in ("read", "late"):
            for reading in scaler.requested[: None if step == "read" else -1]:
                reading.arrived = True
        else:
            state = scaler.state
            before, after = scaler.train(None if step == "unknown" else step == "overflow")
            assert known(before) in (None, state)
            assert known(after) in (None, scaler.state)
    scaler.train(False)
    for reading in scaler.requested:
        reading.arrived = True
    before, after = scaler.train(False)
    assert known(before) is not None
    assert known(after) == scaler.state


def test_a_follower_that_was_wrong_tells_nothing() -> None:
    """After a sample shows another state than the followed one, states stay unknown, even if readings arrive."""
    scaler = Scaler()
    scaler.follower._check(Reading(4.0, 0, []), Reading(8.0, 0, []))
    assert scaler.failed == ["following the scale"]
    for _ in range(2):
        assert [known(each) for each in scaler.train(False)] == [None, None]
        for reading in scaler.requested:
            reading.arrived = True


def test_a_state_after_fused_steps_is_checked() -> None:
    """If no step brought found_inf to the host, the state computed from its copy is compared with the device's."""
    scaler = Scaler()
    scaler.train(False)
    iteration = Iteration(steps={1: taken("SGD", "fused")}, found={})
    flags = {torch.device("cpu"): torch.zeros(1)}
    scaler._per_optimizer_states[1]["found_inf_per_device"] = flags
    iteration.before = scaler.follower.before(scaler, iteration)
    scaler.update()
    _, check = scaler.follower.after(scaler, iteration, manual=False)
    for reading in scaler.requested:
        reading.arrived = True
    check(Reading(*scaler.state, []))
    assert scaler.failed == []
    check(Reading(1.0, 0, []))
    assert scaler.failed == ["following the scale"]
