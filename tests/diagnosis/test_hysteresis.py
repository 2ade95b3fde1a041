"""Diagnosis of scalers with hysteresis, which tolerate some overflows before they lower the scale."""

from __future__ import annotations

import pytest

from ampmon_server.analysis.diagnosis.updates import skips_to_death
from ampmon_server.analysis.policy.scalers import Torch
from ampmon_server.model.scale_policy import ScalePolicy
from made_cases import case, cells_of, found, rules_of, scaler


MEGATRON = ScalePolicy(
    scaler_type="megatron.DynamicGradScaler(hysteresis=2, min_scale=1)",
    device="none",
    init_scale=2.0**24,
    growth_interval=50,
)
TORCH = ScalePolicy(init_scale=2.0**24, growth_interval=50)


def moved(fits: float, updates: int, policy: ScalePolicy, hysteresis: int, every: int = 1):
    """A scaler with this policy and hysteresis: one update of ``every`` so many overflows above the scale ``fits``."""
    machine = Torch(
        policy.init_scale,
        growth_interval=policy.growth_interval,
        hysteresis=hysteresis,
        minimum=1.0,
    )
    before, after, skipped = [], [], []
    for step in range(updates):
        before.append(machine.scale)
        skipped.append(machine.scale > fits and step % every == 0)
        machine.overflow() if skipped[-1] else machine.clean(1)
        after.append(machine.scale)
    pairs = list(zip(before, after, strict=True))
    events = ["backoff" if b > a else "grow" if a > b else "steady" for b, a in pairs]
    return scaler(cells_of(before, after, events, skipped), policy=policy)


def test_what_a_scaler_says_of_its_hysteresis_is_read():
    """A policy reads `hysteresis` and `min_scale` from the scaler's type, with torch's behaviour as the default."""
    assert (MEGATRON.hysteresis, MEGATRON.min_scale) == (2, 1.0)
    assert (TORCH.hysteresis, TORCH.min_scale) == (1, 0.0)
    odd = ScalePolicy(scaler_type="x(hysteresis=2, min_scale=1e-05)")
    assert odd.min_scale == 1e-05


def test_the_search_for_the_first_scale_may_begin_with_a_held_one():
    """Megatron's warm-up is a notice although the first overflow leaves the scale unchanged."""
    (finding,) = found(case(moved(2.0**10, 40, MEGATRON, 2)))
    assert (finding.rule, finding.severity) == ("calibration", "notice")
    assert finding.evidence["skipped"] == 15
    assert finding.fix == "--initial-loss-scale 1024"
    assert rules_of(case(moved(2.0**10, 40, TORCH, 2)))[0] == "consecutive_skips"


@pytest.mark.parametrize("every", [1, 2])
def test_a_sawtooth_takes_two_skips_a_try(every):
    """With a hysteresis of 2, a sawtooth counts both skips of each growth, also apart. Its fix is Megatron's flag."""
    megatron, torch = (moved(2.0**24, 1000, policy, 2, every) for policy in (MEGATRON, TORCH))
    (finding,) = found(case(megatron))
    assert finding.rule == "sawtooth"
    assert finding.evidence["skipped"] == int(megatron.recent["skipped"].sum())
    assert finding.fix == "--loss-scale-window 2000"
    assert "sawtooth" not in rules_of(case(torch))


def test_skips_that_a_hysteresis_lets_pass_make_no_floor():
    """Three overflows that leave the scale unchanged are a floor for torch's scaler, but not with enough hysteresis."""
    before = after = [64.0] * 100
    skipped = [step in {30, 50, 70} for step in range(100)]
    cells = cells_of(before, after, ["steady"] * 100, skipped)
    rules = ("hysteresis=4, min_scale=1", "hysteresis=2, consecutive=1, min_scale=1")
    assert "scale_floor" in rules_of(case(scaler(cells)))
    for rule in rules:
        patient = ScalePolicy(scaler_type=f"mine({rule})", device="none")
        assert "scale_floor" not in rules_of(case(scaler(cells, policy=patient)))


def test_a_real_floor_is_found_under_a_hysteresis():
    """Megatron's scaler at its minimum scale is on a floor: critical, without a fix."""
    finding, *_ = found(case(moved(0.5, 300, MEGATRON, 2)))
    assert (finding.rule, finding.severity) == ("scale_floor", "critical")
    assert "no loss scale helps" in finding.explanation
    assert finding.fix == ""


def test_a_scale_with_a_least_one_never_dies():
    """`skips_to_death` is None for a scaler with a minimum scale."""
    assert skips_to_death(4.0, MEGATRON) is None
    assert skips_to_death(4.0, TORCH) == 130


@pytest.mark.parametrize(
    ("scaler_type", "fix"),
    [
        ("deepspeed.DynamicLossScaler(hysteresis=2, min_scale=1)", '"initial_scale_power": 10}'),
        ("mine.Scaler(hysteresis=2, min_scale=1)", ""),
    ],
)
def test_a_fix_is_a_setting_of_the_framework_s(scaler_type: str, fix: str):
    """A fix is DeepSpeed's configuration for DeepSpeed, and empty for an unknown scaler."""
    policy = ScalePolicy(
        scaler_type=scaler_type, device="none", init_scale=2.0**24, growth_interval=50
    )
    (finding,) = found(case(moved(2.0**10, 40, policy, 2)))
    assert "GradScaler" not in finding.fix
    assert fix in finding.fix if fix else finding.fix == ""
