"""The state machines: torch's against the real scaler, the others against their documentation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampmon_server.analysis.policy.scalers import (
    FOREVER,
    KINDS,
    Fairseq,
    Kind,
    ScalerModel,
    Setting,
    Torch,
)
from policy.made import drive


CEILINGS = st.lists(st.integers(-3, 30), min_size=1, max_size=60)
"""The lowest power of two that overflows at each update; the list repeats."""


def _scales(machine: ScalerModel, overflows: list[bool]) -> list[float]:
    """The scale in force at each update and after the last."""
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
    """The machine has the same scales as `torch.amp.GradScaler`, for any overflows."""
    given_ = {"growth_factor": growth, "backoff_factor": backoff, "growth_interval": interval}

    def overflows(update: int, scale: float) -> bool:
        return scale >= 2.0 ** ceilings[update % len(ceilings)]

    real = drive(40, overflows, init_scale=2.0**init, **given_)
    machine = Torch(2.0**init, growth, backoff, interval)
    assert _scales(machine, [skipped for _, skipped in real])[:-1] == [scale for scale, _ in real]


def test_torch_grows_no_further_than_fp32() -> None:
    """The scale stays at 2**127 until an overflow."""
    machine = Torch(2.0**127, growth_interval=2)
    assert _scales(machine, [False] * 5) == [2.0**127] * 6
    assert machine.until_growth == FOREVER
    machine.clean(10**6)
    machine.overflow()
    assert (machine.scale, machine.until_growth) == (2.0**126, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_many_updates_at_the_cap_are_as_one_by_one(kind: Kind) -> None:
    """At the cap, many clean updates at once leave a machine in the same state as one by one."""
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
    """No framework's machine grows beyond 2**127."""
    machine = Setting(kind, 2.0**120, 2.0, 0.5, growth_interval=1).machine()
    scales = _scales(machine, [False] * 2000)
    assert scales[-1] == (2.0**120 if kind == "fixed" else 2.0**127)


def test_an_interval_of_none_never_grows() -> None:
    """With a growth_interval of 0, neither torch's scaler nor the machine ever grows."""
    drawn = drive(50, lambda update, scale: update == 20, growth_interval=0)
    machine = Setting("torch", 65536.0, 2.0, 0.5, 0).machine()
    assert machine.until_growth == FOREVER
    assert _scales(machine, [skip for _, skip in drawn])[:-1] == [scale for scale, _ in drawn]


def test_torch_is_dead_after_144_skips() -> None:
    """From 65536, 144 skips end the machine at 2**-128."""
    machine = Torch()
    skips = 0
    while machine.ended is None:
        machine.overflow()
        skips += 1
    assert (skips, machine.scale) == (144, 2.0**-128)


def test_hysteresis_lets_the_first_overflow_pass() -> None:
    """With Megatron's hysteresis of 2, the first overflow leaves the scale unchanged, also after a growth."""
    machine = Torch(2.0**10, growth_interval=3, hysteresis=2)
    assert _scales(machine, [True, True, True]) == [1024, 1024, 512, 256]
    assert _scales(machine, [False, False, False, True, True]) == [256, 256, 256, 512, 512, 256]


def test_consecutive_hysteresis_starts_over_with_each_clean_update() -> None:
    """With a consecutive hysteresis of 2, the first of each overflows in a row leaves the scale unchanged."""
    machine = Torch(1024.0, hysteresis=2, consecutive=True)
    assert _scales(machine, [True, False, True, False, True, True])[-2:] == [1024, 512]
    machine.clean(0)
    machine.overflow()
    assert machine.scale == 256


def test_an_overflow_begins_the_window_anew() -> None:
    """An overflow that hysteresis tolerates restarts the growth interval."""
    machine = Torch(1024.0, growth_interval=3, hysteresis=2)
    assert _scales(machine, [False, False, True, False, False])[-1] == 1024
    assert machine.until_growth == 1


def test_megatron_stays_at_its_least_scale() -> None:
    """Megatron's machine stays at a scale of 1 and does not end."""
    machine = Setting("megatron", 2.0, growth_interval=1000).machine()
    assert _scales(machine, [True] * 5)[-1] == 1.0
    assert machine.ended is None


def test_deepspeed_raises_at_its_least_scale() -> None:
    """DeepSpeed's machine ends with an overflow at a scale of 1."""
    machine = Setting("deepspeed", 2.0, growth_interval=1000).machine()
    assert _scales(machine, [True] * 2)[-1] == 1.0
    assert machine.ended is None
    machine.overflow()
    assert machine.ended is not None


def test_fairseq_raises_at_its_least_scale() -> None:
    """Fairseq's machine ends when the scale falls to 1e-4 or below."""
    machine = Fairseq(init_scale=2.0**-12)
    machine.overflow()
    assert machine.ended is None
    machine.overflow()
    assert machine.ended is not None


def test_fairseq_tolerates_a_share_of_overflows() -> None:
    """With a tolerance of 20 %, the scale falls only if that share of the updates since the last change overflowed."""
    machine = Fairseq(1024.0, tolerance=0.2)
    assert _scales(machine, [False] * 9 + [True])[-1] == 1024
    assert _scales(machine, [True])[-1] == 1024
    assert _scales(machine, [True])[-1] == 512
