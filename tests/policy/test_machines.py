"""The state machines: torch's against the real scaler, the others against what their documentation says of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampmon_server.analysis.policy.machines import FOREVER, Fairseq, Hysteresis, Machine, Torch
from ampmon_server.analysis.policy.settings import KINDS, Kind, Setting
from policy.made import drive


CEILINGS = st.lists(st.integers(-3, 30), min_size=1, max_size=60)
"""At each update the power of two from which on it overflows; again from the first where there are no more."""


def _scales(machine: Machine, overflows: list[bool]) -> list[float]:
    """The scale in force at each update, and after the last."""
    found = [machine.scale]
    for overflow in overflows:
        if overflow:
            machine.overflow()
        else:
            machine.clean(1)
        found.append(machine.scale)
    return found


@settings(max_examples=12)
@given(
    CEILINGS,
    st.integers(0, 20),
    st.sampled_from([2.0, 1.5, 4.0]),
    st.sampled_from([0.5, 0.25, 0.9]),
    st.integers(1, 5),
)
def test_torch_moves_as_the_real_scaler(
    ceilings: list[int], init: int, growth: float, backoff: float, interval: int
) -> None:
    """Whatever overflows, scales and skips are those of `torch.amp.GradScaler`, bit by bit."""
    given_ = {"growth_factor": growth, "backoff_factor": backoff, "growth_interval": interval}

    def overflows(update: int, scale: float) -> bool:
        return scale >= 2.0 ** ceilings[update % len(ceilings)]

    real = drive(40, overflows, init_scale=2.0**init, **given_)
    machine = Torch(2.0**init, growth, backoff, interval)
    assert _scales(machine, [skipped for _, skipped in real])[:-1] == [scale for scale, _ in real]


def test_torch_grows_no_further_than_fp32() -> None:
    """At 2^127 the scale stays, and it is known that it will, until an overflow."""
    machine = Torch(2.0**127, growth_interval=2)
    assert _scales(machine, [False] * 5) == [2.0**127] * 6
    assert machine.until_growth == FOREVER
    machine.clean(10**6)
    machine.overflow()
    assert (machine.scale, machine.until_growth) == (2.0**126, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_many_updates_at_the_cap_are_as_one_by_one(kind: Kind) -> None:
    """Where growth changes nothing, a stride over any updates leaves a machine as each of them would."""
    by_one, at_once = (Setting(kind, 2.0**127, 2.0, 0.5, 3).machine() for _ in range(2))
    for updates in (3, 7, 1000):
        for _ in range(updates):
            by_one.clean(1)
        at_once.clean(updates)
        overflows = [True, False, True, True]
        assert _scales(by_one, overflows) == _scales(at_once, overflows)
        for machine in (by_one, at_once):
            machine.scale = 2.0**127


@pytest.mark.parametrize("kind", KINDS)
def test_no_machine_grows_further_than_fp32(kind: Kind) -> None:
    """Whichever framework's it is, and from whatever scale it climbs, fp32 holds its scale for ever."""
    machine = Setting(kind, 2.0**120, 2.0, 0.5, growth_interval=1).machine()
    scales = _scales(machine, [False] * 2000)
    assert scales[-1] == (2.0**120 if kind == "fixed" else 2.0**127)


def test_an_interval_of_none_never_grows() -> None:
    """Of 0 updates between growths torch never reaches one, and no replay does."""
    drawn = drive(50, lambda update, scale: update == 20, growth_interval=0)
    machine = Setting("torch", 65536.0, 2.0, 0.5, 0).machine()
    assert machine.until_growth == FOREVER
    assert _scales(machine, [skip for _, skip in drawn])[:-1] == [scale for scale, _ in drawn]


def test_torch_is_dead_after_144_skips() -> None:
    """From 65536 on, 144 skips make 1/scale infinite."""
    machine = Torch()
    skips = 0
    while machine.ended is None:
        machine.overflow()
        skips += 1
    assert (skips, machine.scale) == (144, 2.0**-128)


def test_hysteresis_lets_the_first_overflow_pass() -> None:
    """Of Megatron's hysteresis of 2 the first overflow costs no scale, until the scale has grown again."""
    machine = Hysteresis(2.0**10, growth_interval=3, raises=False)
    assert _scales(machine, [True, True, True]) == [1024, 1024, 512, 256]
    assert _scales(machine, [False, False, False, True, True]) == [256, 256, 256, 512, 512, 256]


def test_an_overflow_begins_the_window_anew() -> None:
    """An overflow that hysteresis let pass puts growth off as any other."""
    machine = Hysteresis(1024.0, growth_interval=3, raises=False)
    assert _scales(machine, [False, False, True, False, False])[-1] == 1024
    assert machine.until_growth == 1


def test_megatron_stays_at_its_least_scale() -> None:
    """At 1 it goes on, and skips."""
    machine = Hysteresis(2.0, raises=False)
    assert _scales(machine, [True] * 5)[-1] == 1.0
    assert machine.ended is None


def test_deepspeed_raises_at_its_least_scale() -> None:
    """An overflow at 1 ends the training."""
    machine = Hysteresis(2.0, raises=True)
    assert _scales(machine, [True] * 2)[-1] == 1.0
    assert machine.ended is None
    machine.overflow()
    assert machine.ended is not None


def test_fairseq_raises_at_its_least_scale() -> None:
    """It ends when it has backed off to 1e-4 or below."""
    machine = Fairseq(init_scale=2.0**-12)
    machine.overflow()
    assert machine.ended is None
    machine.overflow()
    assert machine.ended is not None


def test_fairseq_tolerates_a_share_of_overflows() -> None:
    """With a tolerance of 20 % the scale stays while fewer of the updates since it last moved overflow."""
    machine = Fairseq(1024.0, tolerance=0.2)
    assert _scales(machine, [False] * 9 + [True])[-1] == 1024
    assert _scales(machine, [True])[-1] == 1024
    assert _scales(machine, [True])[-1] == 512
