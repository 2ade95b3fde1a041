"""A scaler's state that is followed on the host is exactly torch's, or unknown."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from ampmon.client.following import Mirror, moved
from ampmon.training.outcome import Reading


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


class Scaler:
    """A scaler with the attributes that a mirror reads; its `update` takes whether it found an overflow."""

    def __init__(self) -> None:
        self._scale = torch.tensor([8.0])
        self._growth_tracker = torch.zeros(1, dtype=torch.int32)
        self._growth_factor, self._backoff_factor, self._growth_interval = 2.0, 0.5, 3

    def update(self, found: bool) -> None:
        flag = torch.tensor([float(found)])
        rules = self._growth_factor, self._backoff_factor, self._growth_interval
        torch._amp_update_scale_(self._scale, self._growth_tracker, flag, *rules)

    @property
    def state(self) -> tuple[float, int]:
        return self._scale.item(), int(self._growth_tracker.item())


STEPS = st.sampled_from(["update", "overflow", "unknown", "touch", "rule", "read", "late"])


@given(st.lists(STEPS, max_size=60))
def test_what_is_reported_is_what_is_there(steps: list[str]) -> None:
    """Whatever happens in between, a known state is the scaler's own, and a new reading makes the state known again."""
    scaler, mirror = Scaler(), Mirror()
    reading = late = (0, scaler.state)
    for step in steps:
        if step == "touch":
            scaler._scale.mul_(0.5)
        elif step == "rule":
            scaler._growth_interval += 1
        elif step == "read":
            mirror.heard(reading[0], Reading(*reading[1], []))
        elif step == "late":
            mirror.heard(late[0], Reading(*late[1], []))
        else:
            known = mirror.look(scaler)
            assert known in (None, scaler.state)
            scaler.update(step == "overflow")
            assert mirror.follow(scaler, None if step == "unknown" else step == "overflow") in (
                None,
                scaler.state,
            )
            late, reading = reading, (mirror.updates, scaler.state)
    mirror.look(scaler)
    scaler.update(False)
    mirror.follow(scaler, False)
    mirror.heard(mirror.updates, Reading(*scaler.state, []))
    assert mirror.look(scaler) == scaler.state


def test_a_mirror_that_was_wrong_tells_nothing() -> None:
    """After `distrust` the state stays unknown, even if readings arrive."""
    scaler, mirror = Scaler(), Mirror()
    for _ in range(2):
        mirror.look(scaler)
        scaler.update(False)
        mirror.follow(scaler, False)
        mirror.heard(mirror.updates, Reading(*scaler.state, []))
        mirror.distrust()
    assert mirror.look(scaler) is None
