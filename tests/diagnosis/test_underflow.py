"""Rules for gradients that are too small: overall, in one parameter, and where growth would help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ampmon_server.model.scale_policy import ScalePolicy
from made_cases import (
    case,
    cells_of,
    event,
    found,
    joined_samples,
    no_parameters,
    parameters_of,
    rules_of,
    samples_of,
    scaler,
    trained,
)
from made_series import START, logged


STEPS = list(range(100, 300, 20))


def _never_grows(subnormal, *, exponent=-16, top=-5, **fields):
    """A constant scale of 65536 with this share of subnormal values."""
    samples = samples_of(STEPS, {exponent: subnormal, top: 1 - subnormal}, **fields)
    return trained(lambda step, scale: False, 300, samples=samples)


def _tight(subnormal, **fields):
    """The same, but without room to grow: the largest value is just below fp16's maximum."""
    return _never_grows(subnormal, **{"top": 15, **fields})


@pytest.mark.parametrize(
    ("share", "severity"),
    [(0.049, None), (0.051, "warning"), (0.49, "warning"), (0.51, "critical")],
)
def test_subnormal_has_its_levels(share, severity):
    """If growth would not help, subnormal shares of 5 % are a warning and of 50 % critical."""
    findings = [each for each in found(_tight(share)) if each.rule == "subnormal"]
    assert [each.severity for each in findings] == ([severity] if severity else [])


def test_bf16_is_advised_where_no_scale_fits():
    """If no scale fits, bf16 is a notice beside the underflow, and its code is shown once."""
    first, second = found(_tight(0.2))
    assert (first.rule, second.rule, second.severity) == ("subnormal", "bf16", "notice")
    assert second.fix == ""
    assert "bfloat16" in first.fix
    assert "32 powers of two" in second.title


def test_a_sampled_share_is_judged_by_its_lower_bound():
    """A sampled share is judged by its lower bound: 6 % in a small sample is no warning."""
    assert "subnormal" in rules_of(_tight(0.06))
    assert rules_of(_tight(0.06, elements=10**7, looked=320)) == []


def test_two_samples_say_nothing():
    """Two samples are too few for a finding."""
    run = _tight(0.9)
    few = samples_of(STEPS[:2], {-16: 0.9, 15: 0.1})
    assert rules_of(replace(run, samples=few)) == []


def test_underflow_that_growth_would_cure_is_slow_growth():
    """If a larger scale fits but the next growth is far away, the fix is a shorter growth_interval."""
    (finding,) = found(_never_grows(0.3))
    assert (finding.rule, finding.severity) == ("slow_growth", "warning")
    assert "2 doublings too small" in finding.title
    assert "init_scale=2.0**18, growth_interval=250" in finding.fix


def test_flushed_values_may_need_a_larger_scale_than_those_that_were_seen():
    """With room, the fix for a slow growth goes beyond the cure of the values that are not flushed, to 65536."""
    policy = ScalePolicy(init_scale=1.0)
    samples = samples_of(STEPS, {-20: 0.3, -5: 0.1}, zeros=0.6, scale=1.0)
    (finding,) = found(trained(lambda *_: False, 300, policy=policy, samples=samples))
    assert "6 doublings too small" in finding.title
    assert "A scale at least 64 times as large" in finding.explanation
    assert "init_scale=65536, growth_interval=100" in finding.fix


@pytest.mark.parametrize(
    ("held", "part"),
    [
        ({-20: 0.04}, "4\u202f% of the gradient values are subnormal and 96\u202f% are 0: "),
        ({-20: 0.03, -5: 0.01}, None),
    ],
)
def test_a_scale_that_flushes_nearly_everything_is_found(held, part):
    """Few subnormal values are a warning if there is hardly any other value but zeros."""
    policy = ScalePolicy(init_scale=1.0)
    samples = samples_of(STEPS, held, zeros=0.96, scale=1.0)
    findings = found(trained(lambda *_: False, 300, policy=policy, samples=samples))
    assert [each.rule for each in findings] == (["slow_growth"] if part else [])
    assert all(each.severity == "warning" and part in each.title for each in findings)
    assert all("6 doublings too small" in each.title for each in findings)


def test_zeros_that_no_scale_moves_are_no_sign_of_a_small_scale():
    """If a larger scale had as many zeros, few subnormal values are no finding."""
    policy = ScalePolicy(init_scale=1.0)
    parts = [({-12: 0.04}, STEPS[:4], 256.0), ({-20: 0.04}, STEPS[4:], 1.0)]
    samples = joined_samples(
        [samples_of(steps, held, zeros=0.96, scale=scale) for held, steps, scale in parts]
    )
    assert found(trained(lambda *_: False, 300, policy=policy, samples=samples)) == []


def test_a_scale_that_climbs_in_time_is_let_climb():
    """Underflow that growth cures within 500 updates is not a finding."""
    policy = ScalePolicy(init_scale=1.0, growth_interval=50)
    samples = samples_of(STEPS[-4:], {-16: 0.3, -5: 0.7}, scale=64.0)
    run = trained(lambda step, scale: False, 300, policy=policy, samples=samples)
    assert found(run) == []


@pytest.mark.parametrize(
    ("tracker", "exponent", "part"),
    [
        (None, -16, "at least 4\u202f000 steps to grow"),
        (1400, -16, "at least 2\u202f600 steps to grow"),
        (1499, -15, "at least 501 steps to grow"),
        (1500, -15, None),
        (2000, -15, None),
        (2099, -15, None),
        (2100, -15, "never grows"),
    ],
)
def test_updates_that_the_growth_tracker_counted_are_over(tracker, exponent, part):
    """The updates that the growth tracker counted shorten the wait; a tracker beyond the interval never grows."""
    samples = samples_of(STEPS, {exponent: 0.3, -5: 0.7}, scale=64.0)
    run = trained(
        lambda step, scale: False,
        300,
        policy=ScalePolicy(init_scale=64.0),
        samples=samples,
        growth_tracker=tracker,
    )
    findings = found(run)
    assert [each.rule for each in findings] == (["slow_growth"] if part else [])
    assert all(part in each.title for each in findings)


def test_a_growth_interval_of_0_never_grows():
    """With a growth_interval of 0, underflow is `slow_growth` and the fix is an interval."""
    policy = ScalePolicy(init_scale=64.0, growth_interval=0)
    samples = samples_of(STEPS[-4:], {-16: 0.3, -5: 0.7}, scale=64.0)
    (finding,) = found(trained(lambda step, scale: False, 300, policy=policy, samples=samples))
    assert finding.rule == "slow_growth"
    assert finding.title.endswith("and never grows")
    assert "growth_interval = 0, and the tracker is past that" in finding.explanation
    assert "growth_interval=250" in finding.fix


def test_a_scale_set_by_hand_is_not_advised_to_grow():
    """The fix for underflow at a static scale is a larger init_scale and update() without new_scale."""
    n = 300
    same = np.full(n, 8.0)
    samples = samples_of(STEPS, {-18: 0.7, -9: 0.3}, scale=8.0)
    cells = cells_of(same, same, ["manual_set"] * n, [False] * n)
    (finding,) = found(scaler(cells, samples=samples, policy=ScalePolicy(init_scale=8.0)))
    assert (finding.rule, finding.severity) == ("subnormal", "critical")
    assert "init_scale=65536)" in finding.fix
    assert "; 0\u202f% would be subnormal, not counting values that are 0 now\n" in finding.fix
    assert "without new_scale" in finding.fix


def test_a_larger_scale_that_overflowed_is_no_room():
    """Skips at twice the scale show that it cannot grow, so bf16 is the notice."""
    samples = samples_of(STEPS, {-16: 0.3, -5: 0.7}, scale=2.0**15)
    run = trained(lambda step, scale: scale > 2.0**15, 300, samples=samples)
    first, second = found(run)[:2]
    assert (first.rule, second.rule) == ("subnormal", "bf16")
    assert second.title.endswith("= 2¹⁶ overflows")
    assert "span" not in second.title


@pytest.mark.parametrize(
    ("origin", "rules"), [("forward", ["slow_growth"]), (None, ["subnormal", "bf16"])]
)
def test_an_overflow_on_the_way_forward_is_no_ceiling(origin, rules):
    """A forward overflow at twice the scale does not limit growth; another skip does."""
    samples = samples_of([900, 920, 940], {-16: 0.4, -5: 0.6}, scale=16.0)
    policy = ScalePolicy(init_scale=32.0, growth_interval=10**6)
    run = trained(lambda step, scale: step == 500, 1000, policy=policy, samples=samples)
    row = replace(run.skips[0], cause="inf+nan", origin=origin)
    underflow = {"slow_growth", "subnormal", "bf16"}
    assert [each for each in rules_of(replace(run, skips=(row,))) if each in underflow] == rules


def test_what_no_scale_fits_is_said_before_what_overflowed():
    """If the gradients span more than fp16's normal range, the bf16 notice says that, and not what overflowed."""
    samples = samples_of(STEPS, {-16: 0.3, 14: 0.7}, scale=2.0**15)
    run = trained(lambda step, scale: scale > 2.0**15, 300, samples=samples)
    assert "span 31 powers of two" in found(run)[1].title


def _after_bad_batches(held):
    """A scale of 65536 that 13 overflows in a row lower to 8 for good, with samples at 65536 if ``held``."""
    parts = [samples_of([4, 8, 12], {-3: 0.3, 8: 0.7}, scale=65536.0)] if held else []
    parts.append(samples_of(STEPS, {-16: 0.3, -5: 0.7}, scale=8.0))
    policy = ScalePolicy(growth_interval=10**5)
    samples = joined_samples(parts)
    return trained(lambda step, scale: 20 <= step < 33, 300, policy=policy, samples=samples)


@pytest.mark.parametrize(("held", "rule"), [(True, "slow_growth"), (False, "subnormal")])
def test_overflows_far_below_a_scale_that_held_are_no_ceiling(held, rule):
    """Overflows far below a scale that held do not limit growth."""
    underflow = [each for each in found(_after_bad_batches(held)) if each.figure == "underflow"]
    assert [each.rule for each in underflow] == [rule]
    assert ("2 doublings too small" in underflow[0].title) == held


def test_the_cost_grows_with_the_underflow():
    """The estimated gradient error is larger if the values are smaller."""
    mild, bad = (found(_never_grows(0.9, top=top))[0] for top in (0, -12))
    assert "no larger than that of rounding to fp16" in mild.explanation
    assert "Estimated relative gradient error" in bad.explanation


@pytest.mark.parametrize(
    ("share", "norm", "severity"),
    [(0.6, 1.0, "notice"), (0.6, 1e-9, "critical"), (0.6, 0, "critical"), (0.98, 1.0, "critical")],
)
def test_underflow_that_costs_no_parameter_its_precision_is_a_notice(share, norm, severity):
    """A gradient of many tiny values beside large ones loses nothing.

    It does if one parameter has only tiny ones, or if so many are tiny that the scale flushes others.
    """
    parameters = parameters_of({"a.weight": share, "b.weight": share})
    parameters.cells["first"] += STEPS[0]
    parameters.cells["norm"] = [1.0, norm]
    finding, *_ = found(replace(_tight(share), parameters=parameters))
    assert (finding.rule, finding.severity) == ("subnormal", severity)
    assert ("That of one parameter may be" in finding.explanation) == (norm < 1)


@pytest.mark.parametrize(("share", "expected"), [(0.48, False), (0.52, True)])
def test_one_subnormal_parameter_is_named(share, expected):
    """A parameter with over half of its values subnormal is named if the others are fine."""
    parameters = parameters_of({"a.weight": share, "b.weight": 0.01, "c.weight": 0.0})
    run = trained(lambda step, scale: False, 300, parameters=parameters)
    findings = found(run)
    assert [each.rule for each in findings] == (["subnormal_parameter"] if expected else [])
    assert all(each.parameters == ("a.weight",) for each in findings)


def test_the_others_weigh_as_much_as_they_have_elements():
    """Each parameter is weighted by its elements, even if only some of them are sampled."""
    seen = parameters_of({"a.weight": 0.9, "small.weight": 0.3, "huge.weight": 0.01}, numel=1000)
    whole = replace(seen, numel=np.array([1000, 1000, 1_000_000]), sample=1000)

    assert rules_of(trained(lambda step, scale: False, 300, parameters=seen)) == []
    (finding,) = found(trained(lambda step, scale: False, 300, parameters=whole))
    assert finding.parameters == ("a.weight",)
    assert finding.evidence["others"] == pytest.approx(0.01, rel=0.1)


def test_a_bias_is_not_named():
    """A bias is not named: before a normalisation its gradient is zero but for rounding."""
    parameters = parameters_of({"conv.bias": 1.0, "b.weight": 0.01})
    assert rules_of(trained(lambda step, scale: False, 300, parameters=parameters)) == []


def test_all_parameters_alike_are_no_single_one():
    """If all parameters are subnormal, no single one is named."""
    parameters = parameters_of({"a.weight": 0.9, "b.weight": 0.8, "c.weight": 0.3})
    run = replace(_tight(0.7), parameters=parameters)
    assert rules_of(run)[0] == "subnormal"


def test_where_nothing_was_sampled_nothing_is_said():
    """Without samples there is no finding on underflow."""
    assert found(trained(lambda s, c: False, 300, parameters=no_parameters(()))) == []


def _moved(small):
    """Samples at two scales in turn. At the lower one, ``small`` more of the values are zero."""
    steps = list(range(100, 300, 10))
    parts = [
        samples_of(
            [step],
            {-24: small - gone, -16: 0.5 - small, 15: 0.3},
            zeros=0.2 + gone,
            scale=scale,
        )
        for step, (scale, gone) in zip(steps, [(2.0**15, 0.0), (2.0**14, small)] * 10, strict=True)
    ]
    return joined_samples(parts)


@pytest.mark.parametrize(("share", "severity"), [(0.0, None), (0.03, "warning"), (0.2, "critical")])
def test_zeros_that_move_with_the_scale_were_flushed(share, severity):
    """Zeros that appear only at the lower scale were flushed, and their share sets the severity."""
    findings = found(trained(lambda step, scale: False, 300, samples=_moved(share)))
    assert [each.severity for each in findings if each.rule == "flushed"] == (
        [severity] if severity else []
    )


@pytest.mark.parametrize(
    ("before", "scale", "severity", "says", "fix"),
    [
        (2.0**16, 2.0**30, "critical", "before the scaler can see them", "scaler.scale(loss)"),
        (2.0**16, 1.0, "critical", "The scale is only 1", "init_scale=65536"),
        (None, 1.0, "critical", "The scale is only 1", "init_scale=65536"),
        (None, 2.0**16, "warning", "it does not depend on these parameters", ""),
        (2.0**10, 2.0**10, "warning", "a hinge loss may be at the end", ""),
        (2.0**10, 2.0**14, "warning", "a hinge loss may be at the end", ""),
    ],
)
def test_gradients_that_are_all_zero_are_reported(before, scale, severity, says, fix):
    """The finding names the likely reason: overflows hidden from the scaler, too small a scale, or neither."""
    parts = [samples_of([0, 50], {10: 1.0}, scale=before)] if before else []
    zero = samples_of(STEPS, {}, zeros=1.0, scale=scale)
    run = trained(lambda step, scale: False, 300, samples=joined_samples([*parts, zero]))
    (finding,) = [each for each in found(run) if each.rule == "zero_gradients"]
    assert finding.severity == severity
    assert finding.title == "All gradients have been 0 since step 100: the model learns nothing"
    assert says in finding.explanation
    assert fix in finding.fix


def test_a_large_gradient_in_fp32_hides_no_overflow():
    """A gradient computed in fp32 may have been above 65504: it shows no overflow at the same scale."""
    before = samples_of([0, 50], {-5: 1.0}, scale=2.0**16)
    one = replace(before.off_grid, amax=before.scale * 4, sum_squares=before.scale)
    zero = samples_of(STEPS, {}, zeros=1.0, scale=2.0**16)
    samples = joined_samples([replace(before, off_grid=one), zero])
    (finding,) = found(trained(lambda *_: False, 300, samples=samples))
    assert (finding.rule, finding.severity) == ("zero_gradients", "warning")


@pytest.mark.parametrize(("scale", "severity"), [(2.0**16, "warning"), (2.0**20, "critical")])
def test_a_large_sum_of_gradients_hides_an_overflow_only_once_the_scale_has_grown(scale, severity):
    """The sum over several backward passes may be above 65504 without an overflow, but not at 16 times the scale."""
    before = samples_of([0, 50], {15: 1.0}, scale=2.0**16)
    summed = replace(before.on_grid, amax=before.scale * 2)
    before = replace(before, on_grid=before.off_grid, off_grid=summed)
    samples = joined_samples([before, samples_of(STEPS, {}, zeros=1.0, scale=scale)])
    (finding,) = found(trained(lambda *_: False, 300, samples=samples))
    assert (finding.rule, finding.severity) == ("zero_gradients", severity)


def _logged(losses):
    """A case's logged values: a loss for each step."""
    steps = np.arange(len(losses))
    return {"loss": logged(steps, START + steps, losses)}


@pytest.mark.parametrize(
    ("before", "scale", "loss", "severity", "says"),
    [
        (2.0**16, 2.0**15, 0.0, "notice", "The logged loss is 0 too"),
        (2.0**16, 2.0**40, 0.0, "notice", "The logged loss is 0 too"),  # it grows without skips
        (2.0**16, 2.0**40, 2.3, "critical", "the loop replaces inf and NaN by 0"),
        (None, 2.0**15, 0.0, "warning", "The logged loss is 0 too"),
        (None, 2.0**15, 2.3, "warning", "The logged loss is not 0 and not too small"),
        (None, 1.0, 1e-6, "critical", "The scale is only 1"),
        (None, 1.0, 2.3, "critical", "The scale is only 1"),  # it may be the mean of many elements
    ],
)
def test_the_logged_loss_tells_why_all_gradients_are_zero(before, scale, loss, severity, says):
    """A loss of 0 is its own cause, and a large one rules out the scale."""
    parts = [samples_of([0, 50], {-5: 1.0}, scale=before)] if before else []
    zero = samples_of(STEPS, {}, zeros=1.0, scale=scale)
    run = trained(lambda step, scale: False, 300, samples=joined_samples([*parts, zero]))
    losses = np.where(np.arange(300) < STEPS[0], 2.3, loss)
    findings = found(case(run, logged=_logged(losses)))
    (finding,) = [each for each in findings if each.rule == "zero_gradients"]
    assert (finding.severity, bool(finding.fix)) == (severity, severity == "critical")
    assert says in finding.explanation


@pytest.mark.parametrize(("newest", "sure"), [(4, False), (12, True)])
def test_samples_of_zero_as_before_are_chance(newest, sure):
    """If two in three samples were all 0 before, four more in a row say nothing, and twelve do."""
    parts = [
        samples_of([20 * index], {-5: 1.0} if index < 12 and index % 3 == 2 else {}, zeros=0.5)
        for index in range(12 + newest)
    ]
    run = trained(lambda step, scale: False, 500, samples=joined_samples(parts))
    assert ("zero_gradients" in rules_of(run)) == sure


def test_a_loss_that_is_zero_in_some_batches_is_no_finding():
    """If only some batches have a loss of 0, samples with gradients of 0 are chance."""
    run = trained(
        lambda step, scale: False, 300, samples=samples_of(STEPS, {}, zeros=1.0, scale=2.0**16)
    )
    losses = np.arange(300) % 5 == 4
    assert found(case(run, logged=_logged(losses))) == []


def test_a_pause_without_gradients_is_no_finding():
    """Few updates with gradients of 0, and zeros before other values, get no finding."""
    pause = samples_of(STEPS[:3], {}, zeros=1.0)
    over = joined_samples([samples_of(STEPS[:5], {}, zeros=1.0), samples_of(STEPS[5:], {-5: 1.0})])
    for samples in (pause, over):
        run = trained(lambda step, scale: False, 300, samples=samples)
        assert "zero_gradients" not in rules_of(run)


def test_zeros_that_move_with_the_data_are_not_flushed():
    """Zeros that exceed the subnormal share come from the data and were not flushed."""
    steps = list(range(100, 300, 10))
    parts = [
        samples_of([step], {-16: 0.01, 5: 0.69 - gone}, zeros=0.3 + gone, scale=scale)
        for step, (scale, gone) in zip(steps, [(2.0**15, 0.0), (2.0**14, 0.3)] * 10, strict=True)
    ]
    run = trained(lambda step, scale: False, 300, samples=joined_samples(parts))
    assert "flushed" not in rules_of(run)


def _measured(**detail):
    """The finding for one of two parameters with underflow, after a measurement."""
    parameters = parameters_of({"a.weight": 0.9, "b.weight": 0.01})
    run = trained(lambda step, scale: False, 300, parameters=parameters)
    measured = replace(event("measured", scale=256.0, **detail), scaler=run.name, step=4000)
    (finding,) = found(case(run, events=(measured,)))
    return finding


def test_a_measured_error_is_stated_of_the_layer_that_is_named():
    """The finding has the measured errors of its module and of all; a failed or invalid measurement has none."""
    errors = {"error": 0.031, "modules": {"b": 0.5, "a": 0.123, "c": None}}
    named = _measured(**errors)
    other = _measured(**{**errors, "modules": {"c": 0.01, "b": 0.5}})
    failed = _measured(failed="no batch")
    assert named.explanation.endswith(
        " Measured at step 4\u202f000, scale 256 = 2⁸: fp16 changed the gradient of module a by "
        "12.3\u202f%, and the whole gradient by 3.1\u202f%."
    )
    assert named.evidence["measured_error"] == 0.123
    assert "gradient of module b by 50" in other.explanation
    assert failed.explanation.endswith(" A measurement at step 4\u202f000 failed: no batch")
    assert "measured_error" not in failed.evidence
    assert "easure" not in _measured(error="much").explanation
