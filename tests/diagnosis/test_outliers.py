"""Skips caused by growth of the scale, and skips of outlier batches at a steady scale."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.explaining import explained
from ampmon_server.analysis.diagnosis.outliers import period_of
from ampmon_server.analysis.diagnosis.updates import follows_growth
from ampmon_server.model.aggregates import scalars
from ampmon_server.model.aggregates.merging import Cells, starts_of
from ampmon_server.model.case import CULPRITS, ScalerCase, SkipCulprit
from ampmon_server.model.scale_policy import ScalePolicy
from made_cases import (
    NAMES,
    case,
    cells_of,
    found,
    joined_samples,
    no_parameters,
    samples_of,
    skip,
    torch_scaler,
    trained,
)
from made_series import START, logged


NEVER = ScalePolicy(growth_interval=10**9)


def every_90th(step, scale):
    """One batch in 90 overflows at any scale."""
    return step % 90 == 89


def outliers(updates: int = 500, overflows=every_90th, **fields) -> ScalerCase:
    """A run of outlier batches. By default the scale never grows."""
    return trained(overflows, updates, **{"policy": NEVER, "cause": "unknown", **fields})


def losses(updates: int, *, heavy=lambda step: False, together: int = 16, late: int = 0) -> Cells:
    """A loss that falls from 2.3 and is 4096 times larger in heavy updates, ``together`` updates per cell.

    Each value is logged ``late`` updates too early.
    """
    step = np.arange(updates)
    rows = np.zeros(updates, scalars.ROWS)
    rows["step"], rows["time"], rows["user_step"] = np.maximum(step - late, 0), START + step, -1
    weight = np.where([heavy(each) for each in step], 4096.0, 1.0)
    rows["value"] = weight * (0.3 + 2.0 * np.exp(-step / 100))
    cells = scalars.of_rows(rows[late:])
    return scalars.LAYOUT.merge(cells, starts_of(cells["first"] // together))


def skip_rate(run: ScalerCase, **logged: Cells) -> Finding:
    """The only `skip_rate` finding of the run."""
    (finding,) = [each for each in found(case(run, logged=logged)) if each.rule == "skip_rate"]
    return finding


@pytest.mark.parametrize("interval", [10, 50, 200, 500])
def test_skips_of_a_scale_that_grew_too_far_follow_the_growth(interval):
    """If only the larger scale overflows, in half of the updates, over 60 % of the skips follow a growth."""
    draws = np.random.default_rng(0).random(20_000)
    policy = ScalePolicy(growth_interval=interval)
    cells = cells_of(*torch_scaler(lambda s, x: x > 2.0**16 and draws[s] < 0.5, 20_000, policy))
    assert follows_growth(cells, policy)[cells["skipped"] > 0].mean() > 0.6


@pytest.mark.parametrize("interval", [10, 50, 200, 10**9])
def test_skips_of_outliers_do_not_follow_growth(interval):
    """Skips of batches that overflow at any scale never follow a growth, at any interval."""
    policy = ScalePolicy(growth_interval=interval)
    cells = cells_of(*torch_scaler(lambda s, x: s % 700 == 699, 20_000, policy))
    assert not follows_growth(cells, policy)[cells["skipped"] > 0].any()


def test_a_growth_that_was_taken_back_is_not_blamed_again():
    """Of two skips in a row after a growth, only the first follows the growth."""
    cells = cells_of(
        np.array([8.0, 16.0, 8.0, 4.0]),
        np.array([16.0, 8.0, 4.0, 4.0]),
        ["grow", "backoff", "backoff", "steady"],
        [False, True, True, False],
    )
    assert follows_growth(cells, ScalePolicy()).tolist() == [False, True, False, False]


def test_a_scale_that_was_set_by_hand_did_not_grow():
    """A skip after a manually set scale does not follow the growth before it."""
    cells = cells_of(
        np.array([8.0, 16.0, 2.0**20]),
        np.array([16.0, 2.0**20, 2.0**19]),
        ["grow", "manual_set", "backoff"],
        [False, False, True],
    )
    assert not follows_growth(cells, ScalePolicy())[2]


@pytest.mark.parametrize("interval", [0, 30, 2000, 10**9])
def test_a_larger_interval_is_not_advised_where_no_growth_caused_the_skips(interval):
    """For skips at a steady scale, the title says so and the fix does not change growth_interval."""
    finding = skip_rate(outliers(policy=ScalePolicy(init_scale=2.0**60, growth_interval=interval)))
    assert "all 5 at a steady scale, every 90 steps" in finding.title
    assert "growth_interval" not in finding.fix
    assert finding.evidence["after_growth"] == 0
    assert finding.evidence["period"] == 90


def test_two_skips_are_both():
    """If all skips are two, the words are "both", not "all 2"."""
    finding = skip_rate(trained(lambda step, scale: step in (300, 800), 1200))
    assert finding.title.endswith("steps were skipped (0.2\u202f%), both at a steady scale")
    assert "Before both skips the scale had not grown" in finding.explanation


@pytest.mark.parametrize(("together", "heavy"), [(1, "5"), (16, "5"), (250, "2 to 5")])
@pytest.mark.parametrize("late", [0, 1])
def test_a_loss_that_is_too_large_at_the_skips_is_limited(together, heavy, late):
    """A logged loss far above the usual at the skips is named, and the fix limits it.

    Of several skips in a cell, only that of its largest value certainly had a large loss.
    """
    loss = losses(500, heavy=lambda step: every_90th(step, 0), together=together, late=late)
    finding = skip_rate(outliers(), **{"train/loss": loss})
    assert f"At {heavy} of them the logged train/loss was" in finding.explanation
    assert 200 < finding.evidence["loss_ratio"] < 5000
    assert "torch.where(size > 4 * usual" in finding.fix


def test_skips_beside_one_with_an_outlier_loss_do_not_count_for_certain():
    """Of two skips in a cell, one with an ordinary loss, the other shows at how many skips it was an outlier."""
    run = outliers(overflows=lambda step, scale: step % 96 in (80, 85))
    loss = losses(500, heavy=lambda step: step % 96 == 80)
    assert "At 5 to 10 of them the logged loss was" in skip_rate(run, loss=loss).explanation


@pytest.mark.parametrize("rule", ["diverged", "low_scale"])
@pytest.mark.parametrize(
    ("first", "ratio", "of_the_burst"), [(80, 8e5, True), (80, None, False), (120, 8e5, False)]
)
def test_what_a_burst_of_outliers_leaves_behind_is_not_distinguished(
    rule, first, ratio, of_the_burst
):
    """A divergence or low scale that a burst of outliers caused is not a finding of its own."""
    burst = Finding(
        rule="consecutive_skips",
        severity="critical",
        title="18 steps in a row were skipped",
        explanation="",
        first_step=80,
        last_step=97,
        evidence={"loss_ratio": ratio},
    )
    left = Finding(
        rule=rule, severity="warning", title="", explanation="", first_step=first, last_step=200
    )
    assert [each.rule for each in explained([left, burst])] == (
        ["consecutive_skips"] if of_the_burst else [rule, "consecutive_skips"]
    )


@pytest.mark.parametrize("is_heavy", [True, False])
def test_a_scale_that_outliers_lowered_is_no_finding_of_its_own(is_heavy):
    """Outliers that push the scale below 1 are limited. If the loss is ordinary there, the low scale is a finding."""
    loss = losses(500, heavy=lambda step: is_heavy and step % 17 == 16, together=1)
    run = outliers(overflows=lambda step, scale: step % 17 == 16)
    rules = [each.rule for each in found(case(run, logged={"loss": loss}))]
    assert ("skip_rate" in rules, "low_scale" in rules) == (True, not is_heavy)


def test_an_ordinary_loss_is_not_limited():
    """If the logged loss was ordinary at the skips, the finding says so and the fix samples activations."""
    finding = skip_rate(outliers(), loss=losses(500))
    assert "The logged loss was normal" in finding.explanation
    assert "activations=1" in finding.fix


def test_a_loss_that_was_not_logged_at_the_skips_says_nothing():
    """A loss that was not logged at the skipped updates is not called ordinary."""
    loss = losses(500, together=1)[::10]
    finding = skip_rate(outliers(), loss=loss)
    assert "ordinary" not in finding.explanation


def test_without_a_logged_loss_the_first_step_is_to_log_it():
    """Without a logged loss, the fix begins with a call to `ampmon.log`."""
    assert skip_rate(outliers()).fix.startswith("ampmon.log(")


def test_a_scale_that_let_the_same_batches_through_is_advised():
    """If the outliers fit at a lower scale, the fix fixes the scale there and clips."""
    run = outliers(300, lambda step, scale: step % 30 == 29 and scale > 2.0**12)
    fix = skip_rate(run).fix
    assert "init_scale=4096, growth_interval=1000000000" in fix
    assert "clip_grad_norm_" in fix


def test_a_scale_at_which_too_few_batches_were_tried_is_not_advised():
    """A lower scale that was tested on too few outliers is not recommended."""
    run = outliers(200, lambda step, scale: step % 30 == 29 and scale > 2.0**12)
    assert "init_scale" not in skip_rate(run).fix


def test_a_scale_that_was_tried_only_between_outliers_is_not_advised():
    """A lower scale that no outlier was tested at is not recommended."""
    run = trained(every_90th, 1500, policy=ScalePolicy(growth_interval=50), cause="unknown")
    assert "init_scale" not in skip_rate(run).fix


def test_every_kth_batch_is_no_sawtooth():
    """A periodic outlier is a skip rate with its period, and not a sawtooth."""
    run = trained(every_90th, 1500, policy=ScalePolicy(growth_interval=50), cause="unknown")
    assert "every 90 steps" in skip_rate(run).title
    assert "sawtooth" not in [each.rule for each in found(run)]


@pytest.mark.parametrize(("before", "inside"), [(0.0, 0.0), (0.0, 5.0), (-1.0, -9.0)])
def test_a_streak_beside_a_loss_that_has_no_usual_value_is_judged(before, inside):
    """A loss that was 0 or negative before a streak of skips is no outlier in it."""
    overflows = [300 <= step < 310 for step in range(400)]
    run = trained(lambda step, scale: overflows[step], 400, policy=NEVER)
    step = np.arange(400)
    loss = logged(step, START + step, np.where(overflows, inside, before))
    findings = found(case(run, logged={"loss": loss}))
    streak = next(each for each in findings if each.rule == "consecutive_skips")
    assert (streak.severity, streak.evidence.get("loss_ratio")) == ("warning", None)


def test_weights_that_a_burst_of_outliers_damaged_are_blamed_on_it():
    """A forward overflow right after consecutive skips is their result if the loss was an outlier at these skips."""
    run = trained(lambda step, scale: 100 <= step < 110 or step >= 113, 200, cause="inf")
    rows = (
        replace(row, loss="finite" if row.step < 110 else "not_finite", origin=origin)
        for row in run.skips
        for origin in ["backward" if row.step < 110 else "forward"]
    )
    run = replace(run, skips=tuple(rows))
    heavy = losses(200, heavy=lambda step: 100 <= step < 110, together=1)
    first, ordinary = (found(case(run, logged={"loss": each}))[0] for each in (heavy, losses(200)))
    assert (first.rule, first.severity) == ("consecutive_skips", "critical")
    assert "torch.where(size > 4 * usual" in first.fix
    assert ordinary.rule == "forward_overflow"


def climbing(step, scale):
    """Gradients shrink over time, so each growth comes a little too early."""
    return scale > 2.0 ** (16 + 3 * (step // 250))


def test_skips_after_growths_are_cured_by_a_larger_interval():
    """If each skip follows a growth, a sentence says so, and the fix is torch's default growth_interval."""
    finding = skip_rate(
        trained(climbing, 1000, policy=ScalePolicy(growth_interval=50), cause="unknown")
    )
    assert "soon after the scale had grown" in finding.title
    assert re.search(r"\. (All \d+|Both) skips came soon after", finding.explanation)
    assert "growth_interval=2000" in finding.fix


def test_each_kind_of_skip_that_is_a_finding_alone_has_its_fix():
    """For outliers and growth skips together, the title has both, and the fix limits the loss and growths."""

    def overflows(step, scale):
        return climbing(step, scale) or step % 60 == 59

    run = trained(overflows, 1000, policy=ScalePolicy(growth_interval=20), cause="unknown")
    loss = losses(1000, heavy=lambda step: step % 60 == 59)
    finding = skip_rate(run, loss=loss)
    assert "torch.where(size > 4 * usual" in finding.fix
    assert "growth_interval=2000" in finding.fix
    both = r"(\d+) of (\d+) soon after the scale had grown, (\d+) of \2 at a steady scale"
    match = re.search(both, finding.title)
    assert match is not None
    assert int(match[1]) + int(match[3]) == int(match[2]) == finding.evidence["skipped"]


def tried_and_spiked() -> ScalerCase:
    """Growth every 10 updates to a scale that 30 % of batches overflow, and an outlier every 41; all in one layer."""
    draws = np.random.default_rng(0).random(1000)
    run = trained(
        lambda step, scale: step % 41 == 40 or (scale > 2.0**16 and draws[step] < 0.3),
        1000,
        policy=ScalePolicy(growth_interval=10),
    )
    return replace(run, skips=tuple(skip(each.step, culprits=2) for each in run.skips))


def test_later_tries_and_outliers_are_distinguished_and_cured_by_one_code():
    """Outliers in the loss beside growth skips are one finding, with a limit and a larger interval but no sampling."""
    run = tried_and_spiked()
    heavy = losses(1000, heavy=lambda step: step % 41 == 40, together=1)
    (finding,) = found(case(run, logged={"loss": heavy}))
    assert finding.rule == "skip_rate"
    # 24 outliers, and one skip whose growth had just been undone
    assert finding.evidence["skipped"] - finding.evidence["after_growth"] == 25
    assert "torch.where(size > 4 * usual" in finding.fix
    assert "growth_interval=2000" in finding.fix
    assert "activations" not in finding.fix


def test_a_fix_for_two_causes_makes_one_scaler():
    """A fix that samples activations and raises growth_interval creates one scaler with both settings."""

    def overflows(step, scale):
        return climbing(step, scale) or step % 60 == 59

    run = trained(overflows, 1000, policy=ScalePolicy(growth_interval=20), cause="unknown")
    fix = skip_rate(run, loss=losses(1000)).fix
    assert fix.count("scaler = ") == 1
    assert "growth_interval=2000" in fix
    assert "activations=1" in fix


def test_a_layer_that_overflows_first_is_reported():
    """The finding names the parameter that overflowed first most often, or says that every parameter overflowed."""
    run = outliers(cause="inf")
    assert "Every parameter overflowed in 5 of 5" in skip_rate(run).explanation
    rows = [
        skip(each.step, culprits=count)
        for each, count in zip(run.skips, (2, 2, 4, 4, 3), strict=True)
    ]
    mixed = outliers(skips=tuple(rows))
    assert f"{NAMES[1]} was the first to overflow in 2 of 5" in skip_rate(mixed).explanation


def test_the_gradient_norm_around_skips_is_compared():
    """The gradient norm near the skips is compared with the median of the other samples."""
    near = [step for step in range(5, 500, 10) if step % 90 in {75, 85, 5}]
    far = [step for step in range(5, 500, 10) if step not in near]
    calm = outliers(samples=samples_of(sorted(near + far), {0: 1.0}))
    assert "the training itself was stable" in skip_rate(calm).explanation
    raised = joined_samples([samples_of(near, {4: 1.0}), samples_of(far, {0: 1.0})])
    assert "16 times the median" in skip_rate(outliers(samples=raised)).explanation


def test_the_second_scaler_is_not_compared_with_the_loss():
    """Logged values use the first scaler's steps, so they are not compared with another scaler's skips."""
    loss = losses(500, heavy=lambda step: every_90th(step, 0))
    healthy = trained(lambda step, scale: False, 500)
    run = case(healthy, outliers(name="second"), logged={"loss": loss})
    (finding,) = [each for each in found(run) if each.rule == "skip_rate"]
    assert finding.evidence["loss_ratio"] is None


@given(st.integers(2, 1000), st.lists(st.integers(1, 5), min_size=3, max_size=30))
def test_a_period_is_found_whatever_batches_are_missing(period, gaps):
    """A period found in gapped skips is a multiple of the true period."""
    steps = np.cumsum(gaps) * period
    assert (period_of(np.append(0, steps)) or 0) % period == 0


def test_two_equal_gaps_are_no_period():
    """Three equidistant skips have no period, four have one."""
    assert period_of(np.array([10, 50, 90])) is None
    assert period_of(np.array([10, 50, 90, 130])) == 40


def test_irregular_skips_have_no_period():
    """Of 200 runs with random skips in one update of 40, fewer than four have a period."""
    draws = np.random.default_rng(3)
    runs = [np.flatnonzero(draws.random(1000) < 1 / 40) for _ in range(200)]
    assert sum(period_of(steps) is not None for steps in runs) < 4


@pytest.mark.parametrize(
    ("heavy", "culprits", "rule"),
    [
        (every_90th, [3, 1], "skip_rate"),
        (every_90th, [1], "culprit_layer"),
        (every_90th, [2, 1], "culprit_layer"),
        (None, [2, 1], "culprit_layer"),
    ],
)
def test_the_first_layer_to_overflow_at_an_outlier_loss_is_no_culprit(heavy, culprits, rule):
    """At a loss 4096 times the usual one, some layer is first. It is blamed only if it overflows without the others.

    The first two parameters are of one layer.
    """
    run = outliers()
    rows = [
        skip(each.step, culprits=culprits[at % len(culprits)]) for at, each in enumerate(run.skips)
    ]
    loss = losses(500, heavy=lambda step: heavy is not None and heavy(step, 1.0))
    (finding,) = found(case(replace(run, skips=tuple(rows)), logged={"loss": loss}))
    assert finding.rule == rule
    assert "ampmon.log" not in finding.explanation
    assert " are 90 steps apart" in finding.explanation


def test_a_loss_that_has_risen_blames_the_learning_rate():
    """If the loss ends far above its first value, no layer is the culprit, and the training is not called stable."""
    run = outliers()
    rows = tuple(replace(row, culprit_parameters=1) for row in run.skips)
    grown = losses(500)
    grown["value_max"][1:] *= 1000
    grown["sum"][1:] *= 1000
    (fell, rose) = (
        found(case(replace(run, skips=rows), logged={"loss": loss}))[0]
        for loss in (losses(500), grown)
    )
    assert fell.rule == "culprit_layer"
    assert rose.rule == "skip_rate"
    assert (
        "times its first value: if it should fall, the learning rate is too large"
        in rose.explanation
    )
    assert "stable" not in rose.explanation
    assert rose.fix.startswith("# If the loss should fall, use a smaller learning rate")


def test_an_outlier_as_the_newest_loss_is_one_of_the_outliers():
    """If the newest loss is that of a skip, it counts like the others, and the loss has not risen."""
    loss = losses(450, heavy=lambda step: every_90th(step, 0), together=1)
    finding = skip_rate(outliers(450), loss=loss)
    assert "At 5 of them the logged loss was" in finding.explanation
    assert "times its first value" not in finding.explanation


@pytest.mark.parametrize(("dip", "rule"), [(0.01, "skip_rate"), (-0.01, "culprit_layer")])
def test_a_loss_that_may_be_negative_has_not_risen(dip, rule):
    """A loss with both signs, such as a policy's, may begin near 0, which says nothing about the learning rate."""
    run = outliers()
    rows = tuple(replace(row, culprit_parameters=1) for row in run.skips)
    step = np.arange(500)
    loss = logged(step, START + step, np.where(step == 4, dip, np.where(step < 8, 0.01, 0.3)))
    assert found(case(replace(run, skips=rows), logged={"loss": loss}))[0].rule == rule


@pytest.mark.parametrize("together", [1, 16])
def test_a_layer_that_overflows_alone_is_named_although_the_loss_has_risen(together):
    """A rising loss, as of a weight that is annealed, does not hide a layer whose overflow makes it an outlier."""
    run = outliers()
    rows = tuple(replace(row, culprit_parameters=1) for row in run.skips)
    loss = losses(500, heavy=lambda step: every_90th(step, 0), together=together)
    for name in ("sum", "value_min", "value_max"):
        loss[name][1:] *= 1000
    assert found(case(replace(run, skips=rows), logged={"loss": loss}))[0].rule == "culprit_layer"


@pytest.mark.parametrize(
    ("size", "init_scale", "rule"),
    [(1.0, 64.0, "culprit_layer"), (1e6, 64.0, "low_scale"), (1e6, 2.0**16, "culprit_layer")],
)
def test_a_large_loss_is_named_instead_of_a_layer(size, init_scale, rule):
    """A loss of a million, as of large targets, is the cause of a scale below 1, not of skips at a scale above it."""
    run = trained(
        lambda step, scale: scale > init_scale / 2 ** (1 + step // 50),
        500,
        policy=ScalePolicy(init_scale=init_scale),
    )
    rows = tuple(replace(row, culprit_parameters=1) for row in run.skips)
    step = np.arange(500)
    loss = logged(step, START + step, size * (0.3 + 2.0 * np.exp(-step / 100)))
    first, *others = found(case(replace(run, skips=rows), logged={"loss": loss}))
    assert first.rule == rule
    is_large = rule == "low_scale"
    assert is_large == ("divide the targets by their standard deviation" in first.fix)
    assert not is_large or "culprit_layer" not in {each.rule for each in others}


@pytest.mark.parametrize(("culprits", "rule"), [([17, 33], "skip_rate"), ([17], "culprit_layer")])
def test_layers_beyond_the_listed_culprits_count_at_an_outlier_loss(culprits, rule):
    """Skips that list the same culprits differ if more parameters than listed overflowed."""
    names = tuple(f"layers.{at}.weight" for at in range(40))
    run = outliers(parameters=no_parameters(names))
    listed = [SkipCulprit(name, 1, 0) for name in names[: -CULPRITS - 1 : -1]]
    rows = [
        replace(each, culprits=listed, culprit_parameters=culprits[at % len(culprits)])
        for at, each in enumerate(run.skips)
    ]
    loss = losses(500, heavy=lambda step: every_90th(step, 1.0))
    (finding,) = found(case(replace(run, skips=tuple(rows)), logged={"loss": loss}))
    assert finding.rule == rule
