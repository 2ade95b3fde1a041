"""Rules for skipped updates: rate, consecutive skips, cause and origin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ampmon_server.analysis.diagnosis.rules.scale import calibration
from ampmon_server.analysis.diagnosis.updates import newest_scale
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.thresholds import Thresholds
from made_cases import (
    NAMES,
    case,
    cells_of,
    found,
    joined_samples,
    parameters_of,
    rules_of,
    samples_of,
    scaler,
    skip,
    torch_scaler,
    trained,
)
from made_series import START, logged


NEVER = ScalePolicy(growth_interval=10**9)


def test_a_run_that_skips_nothing_is_healthy():
    """A run without skips has no findings."""
    assert found(trained(lambda step, scale: False, 3000)) == []


@pytest.mark.parametrize("ceiling", [2.0**6, 2.0**12, 2.0**15])
def test_the_search_for_the_scale_is_a_notice_at_most(ceiling):
    """Skips of the warm-up, until the scale fits, are at most a notice."""
    findings = found(trained(lambda step, scale: scale > ceiling, 1500))
    assert all(finding.severity == "notice" for finding in findings)


def test_a_long_search_says_which_scale_to_begin_with():
    """Six warm-up skips are a notice whose fix is the scale found."""
    (finding,) = found(trained(lambda step, scale: scale > 2.0**10, 200))
    assert (finding.rule, finding.severity) == ("calibration", "notice")
    assert "init_scale=1024)" in finding.fix
    assert "6" in finding.title


def test_a_scale_that_fell_later_is_not_the_one_to_begin_with():
    """If NaN brings the scale down after the search, the notice still names the scale that the search found."""
    run = trained(lambda step, scale: scale > 2.0**10 or step > 150, 200)
    assert newest_scale(run) < 1
    (finding,) = calibration.examine(case(run), Thresholds())
    assert "init_scale=1024)" in finding.fix


def test_torch_s_own_tries_are_no_finding():
    """One skip after the growth at update 2000 is normal and not a finding."""
    run = trained(lambda step, scale: scale > 2.0**16, 2 * 2000 + 100, policy=ScalePolicy())
    assert run.recent["skipped"].sum() == 1
    assert found(run) == []


def _spikes(every):
    """One batch in ``every`` overflows at any scale, from step 100 on."""
    return lambda step, scale: step >= 100 and step % every == 0


@pytest.mark.parametrize(
    ("every", "severity"), [(600, None), (400, "notice"), (90, "warning"), (19, "critical")]
)
def test_skip_rate_has_its_levels(every, severity):
    """A rate of 1 in 400 is a notice, 1 in 90 a warning and 1 in 19 critical; 1 in 600 is not a finding."""
    run = trained(_spikes(every), 1200, cause="unknown", policy=ScalePolicy(growth_interval=30))
    findings = [each for each in found(run) if each.rule == "skip_rate"]
    assert [each.severity for each in findings] == ([severity] if severity else [])


def test_a_few_updates_do_not_make_a_rate():
    """Two skips in 80 updates are no finding, because the lower bound of the rate counts."""
    assert found(trained(lambda step, scale: step in {50, 75}, 80, cause="unknown")) == []


@pytest.mark.parametrize(
    ("steps", "severity"),
    [
        ({19, 24, 64}, "notice"),
        (range(19, 120, 12), "warning"),
        ({17, 33, 36, 51, 58, 79, 98, 103}, "warning"),
    ],
)
def test_a_few_skips_of_a_gradient_that_grows_at_first_are_a_notice(steps, severity):
    """Three skips early in a run, each at a lower scale, are a notice; nine at equal distances are a warning.

    Eight at random are one too: so many batches that overflow are no search.
    """
    finding, *_ = found(
        trained(lambda step, scale: step in steps, 120, cause="unknown", policy=NEVER)
    )
    assert (finding.rule, finding.severity) == ("skip_rate", severity)


@pytest.mark.parametrize(
    ("length", "severity"), [(3, None), (4, "notice"), (8, "warning"), (16, "critical")]
)
def test_skips_in_a_row_have_their_levels(length, severity):
    """Four skips in a row are a notice, eight a warning and sixteen critical."""
    run = trained(lambda step, scale: 1500 <= step < 1500 + length, 2600, cause="unknown")
    findings = [each for each in found(run) if each.rule == "consecutive_skips"]
    assert [each.severity for each in findings] == ([severity] if severity else [])


def test_skips_in_a_row_until_now_stop_the_run():
    """If the last twenty updates were all skipped, the finding stops the run."""
    (finding, *_) = found(trained(lambda step, scale: step >= 200, 220, cause="unknown"))
    assert finding.rule in {"consecutive_skips", "collapse_forecast"}
    assert finding.stop
    assert (finding.first_step, finding.last_step) == (200, 219)


def test_a_search_that_passes_1_is_no_search_any_more():
    """Skips in a row from the first update are critical once the scale is below 1."""
    assert found(trained(lambda step, scale: True, 15, cause="unknown"))[0].severity == "notice"
    assert found(trained(lambda step, scale: True, 18, cause="unknown"))[0].severity == "critical"


def test_nan_at_a_scale_that_fits_is_no_overflow():
    """A NaN skip at a scale that fits is a warning. Two skips 60 steps apart are critical, 260 apart are not."""
    once = trained(lambda step, scale: step == 300, 400, cause="nan")
    twice = trained(lambda step, scale: step in {300, 360}, 400, cause="nan")
    apart = trained(lambda step, scale: step in {100, 360}, 400, cause="nan")
    severities = [found(each)[0].severity for each in (once, twice, apart)]
    assert severities == ["warning", "critical", "warning"]
    assert {found(each)[0].rule for each in (once, twice, apart)} == {"nan_not_overflow"}


def test_nan_for_ever_stops_the_run_and_explains_its_skips():
    """NaN at every update stops the run and explains its skips."""
    run = trained(lambda step, scale: step >= 100, 140, cause="nan")
    (finding,) = found(run)
    assert (finding.rule, finding.stop) == ("nan_not_overflow", True)


def _with_skips(run, **fields):
    """The same run with these fields changed in each skip."""
    return replace(run, skips=tuple(replace(row, **fields) for row in run.skips))


def test_nan_of_a_finite_loss_is_an_overflow():
    """A NaN skip whose loss was finite before scaling is an overflow, reported as an outlier."""
    run = trained(lambda step, scale: step % 90 == 89, 500, cause="nan", policy=NEVER)
    assert found(run)[0].rule == "nan_not_overflow"
    for loss in ("finite", "overflowed"):
        (finding,) = found(_with_skips(run, loss=loss, origin="backward"))
        assert (finding.rule, finding.severity) == ("skip_rate", "notice")
        assert "at a steady scale, every 90 steps" in finding.title


def test_nan_of_a_finite_loss_that_nothing_enlarges_is_no_overflow():
    """If skips with a finite loss continue at scales of at most 1, the NaN began in the backward pass."""
    run = trained(lambda step, scale: step >= 20, 60, cause="nan")
    rows = [replace(row, loss="finite", scale=2.0 ** (36 - row.step)) for row in run.skips]
    finding = found(replace(run, skips=tuple(rows)))[0]
    assert (finding.rule, finding.stop) == ("nan_not_overflow", True)
    assert finding.title.startswith("40 steps were skipped due to NaN from the backward pass")
    assert "activations=1" in finding.fix


@pytest.mark.parametrize(
    ("origin", "loss", "why"),
    [
        ("backward", "finite", "due to NaN from the backward pass"),
        (None, "finite", "due to NaN from the backward pass"),
        (None, "not_finite", "because the loss was not finite"),
    ],
)
def test_nan_that_kills_the_scale_is_named_before_the_dead_scale(origin, loss, why):
    """Later skips do not count: a loss is NaN after finite gradients at a dead scale have destroyed the weights."""
    run = trained(lambda step, scale: step >= 20 and step != 170, 400, cause="nan")
    killing = [
        replace(row, loss=loss, origin=origin, scale=2.0 ** (36 - row.step))
        for row in run.skips
        if row.step < 170
    ]
    later = [replace(row, loss="not_finite") for row in run.skips if row.step > 170]
    first, *others = found(replace(run, skips=(*later, *killing)))
    assert (first.rule, first.severity, first.stop) == ("nan_not_overflow", "critical", True)
    assert first.title.startswith(f"150 steps were skipped {why} (steps 20 – 169)")
    assert first.explanation.startswith("The scale has been dead since step 163")
    assert "dead_scale" not in {each.rule for each in others}
    assert first.fix.count("scaler = ") == first.fix.count("saved before step 163") == 1


def test_the_number_of_skips_whose_loss_was_not_finite_is_given():
    """If other skips are due to NaN of another origin, the title counts only those of the cause that it names."""
    run = trained(_spikes(100), 600, cause="nan", policy=NEVER)
    rows = [replace(row, loss="not_finite" if row.step > 200 else None) for row in run.skips]
    (finding,) = found(replace(run, skips=tuple(rows)))
    assert finding.title.startswith(
        "5 steps were skipped for inf or NaN, 3 of them because the loss was not finite (steps"
    )


@pytest.mark.parametrize("cause", ["inf", "nan", "unknown"])
@pytest.mark.parametrize(
    ("origin", "why", "fix"),
    [
        (
            None,
            "because the loss was not finite",
            "model=model, monitor=ampmon.Config(activations=1))",
        ),
        ("input", "because the model's input was not finite", "assert torch.isfinite(inputs)"),
        (
            "loss",
            "because the loss was not finite although the outputs were",
            "loss_function(outputs.floa",
        ),
    ],
)
def test_a_loss_that_is_not_finite_is_beyond_any_scale(cause, origin, why, fix):
    """Skips with a non-finite loss are `nan_not_overflow` for any cause, and the origin seen at one skip names all."""
    run = _with_skips(trained(_spikes(100), 600, cause=cause, policy=NEVER), loss="not_finite")
    last, *before = run.skips
    (finding,) = found(replace(run, skips=(replace(last, origin=origin), *before)))
    assert (finding.rule, finding.severity) == ("nan_not_overflow", "warning")
    assert finding.title.startswith(f"5 steps were skipped {why}")
    assert fix in finding.fix
    assert "set_detect_anomaly" not in finding.fix


@pytest.mark.parametrize(("scale", "rule"), [(0.5, "nan_not_overflow"), (None, "skip_rate")])
def test_a_scale_that_is_not_finite_does_not_count_as_a_small_one(scale, rule):
    """NaN at a finite loss is no overflow at a scale of at most 1, which inf and NaN, stored as null, are not."""
    run = _with_skips(
        trained(_spikes(50), 600, cause="nan", policy=NEVER), loss="finite", scale=scale
    )
    assert [each.rule for each in found(run)] == [rule]


@pytest.mark.parametrize(
    ("least", "loss", "ranks", "rule"),
    [
        (2.0**11, 1.0, 1, "nan_not_overflow"),
        (2.0**15, 1.0, 1, "skip_rate"),
        (2.0**11, 100.0, 1, "skip_rate"),
        (2.0**11, 1.0, 8, "skip_rate"),  # another rank's loss may be the outlier
    ],
)
def test_nan_of_an_ordinary_loss_far_below_a_scale_that_fits_is_no_overflow(
    least, loss, ranks, rule
):
    """The logged loss and the sampled gradients tell NaN of the backward pass from an overflow by an outlier."""
    run = trained(lambda step, scale: step % 90 == 89, 500, cause="nan", policy=NEVER)
    scales = [max(2.0 ** (16 - index), least) for index in range(len(run.skips))]
    rows = [
        replace(row, loss="finite", origin="backward", scale=scale)
        for row, scale in zip(run.skips[::-1], scales, strict=True)
    ][::-1]
    samples = samples_of([*range(0, 500, 20)], {3: 1.0})
    step = np.arange(500)
    losses = {"loss": logged(step, START + step, np.where(step % 90 == 89, loss, 1.0))}
    run = replace(run, skips=tuple(rows), samples=samples)
    findings = found(case(run, logged=losses, ranks=ranks))
    assert findings[0].rule == rule


def test_skips_that_were_not_watched_count_as_those_that_were():
    """One skip with a known module gives the origin of every skip with a non-finite loss."""
    run = _with_skips(trained(_spikes(100), 600, cause="nan", policy=NEVER), loss="not_finite")
    last, *before = run.skips
    seen = replace(last, origin="forward", origin_module="norm")
    finding = found(replace(run, skips=(seen, *before)))[0]
    assert (finding.rule, finding.parameters) == ("forward_overflow", ("norm",))
    assert finding.title.startswith(
        "5 skips began in the forward pass, 1 of 1 watched ones in module norm"
    )


def test_the_rank_whose_loss_was_not_finite_tells_where_it_began():
    """The rank with the non-finite loss gives the origin, although the other ranks' losses are finite."""
    run = trained(_spikes(100), 600, cause="nan", policy=NEVER)
    others = _with_skips(run, loss="finite", origin="backward").skips
    own = _with_skips(run, loss="not_finite", origin="input", rank=1).skips
    finding = found(replace(run, skips=(*others, *own)))[0]
    assert finding.title.startswith("5 steps were skipped because the model's input was not")


@pytest.mark.parametrize("cause", ["inf", "inf+nan", "unknown"])
def test_inf_among_nan_is_an_overflow(cause):
    """A skip with inf, or with an unknown cause, is not `nan_not_overflow`."""
    assert "nan_not_overflow" not in rules_of(trained(_spikes(50), 800, cause=cause))


def test_nan_of_a_scale_too_large_is_the_search():
    """NaN at scales that never fit is not `nan_not_overflow`."""
    run = trained(lambda step, scale: scale > 2.0**8, 200, cause="nan")
    assert "nan_not_overflow" not in rules_of(run)


def test_nan_after_a_growth_is_a_try():
    """NaN right after a growth is not `nan_not_overflow`."""
    policy = ScalePolicy(growth_interval=100)
    run = trained(lambda step, scale: scale > 2.0**16, 1000, cause="nan", policy=policy)
    assert "nan_not_overflow" not in rules_of(run)


def test_a_short_growth_interval_costs_what_it_costs():
    """A growth_interval of 10 is a critical sawtooth, which explains the skips."""
    run = trained(lambda step, scale: scale > 2.0**16, 600, policy=ScalePolicy(growth_interval=10))
    (finding,) = found(run)
    assert (finding.rule, finding.severity) == ("sawtooth", "critical")
    assert "growth_interval=2000" in finding.fix


@pytest.mark.parametrize(("first", "begin"), [(1.0, "65536"), (2.0**20, "2.0**20")])
def test_a_scale_far_above_the_first_one_is_where_to_begin(first, begin):
    """A longer growth_interval comes with the scale that fits, if the script begins below it."""
    policy = ScalePolicy(init_scale=first, growth_interval=10)
    finding, *_ = found(trained(lambda step, scale: scale > 2.0**16, 600, policy=policy))
    assert f"GradScaler(init_scale={begin}, growth_interval=2000)" in finding.fix


def test_tries_of_an_interval_that_was_left_are_no_sawtooth():
    """Growth skips under an earlier interval are no sawtooth once the interval is 2000, but are at 20."""
    quick = torch_scaler(lambda step, scale: scale > 2.0**16, 400, ScalePolicy(growth_interval=10))
    for interval, expected in ((2000, []), (20, ["growth_interval=20 is too short (29 of 6"])):
        now = ScalePolicy(growth_interval=interval, init_scale=float(quick[1][-1]))
        later = torch_scaler(lambda step, scale: scale > 2.0**16, 600, now)
        cells = cells_of(*(np.concatenate(pair) for pair in zip(quick, later, strict=True)))
        titles = [
            each.title for each in found(scaler(cells, policy=now)) if each.rule == "sawtooth"
        ]
        assert len(titles) == len(expected), titles
        assert all(part in title for part, title in zip(expected, titles, strict=True))


def test_a_scale_that_is_too_large_for_some_batches_is_a_sawtooth():
    """Skips some updates after a growth, but before the next one, are a sawtooth too."""
    policy = ScalePolicy(growth_interval=10)

    def overflows(step, scale):
        return scale > 2.0**16 and any(step % each == 0 for each in (5, 7))

    assert rules_of(trained(overflows, 600, policy=policy))[0] == "sawtooth"


def test_skips_in_a_row_that_take_back_as_many_growths_are_tries():
    """If noise lets the scale grow twice before it overflows, the two skips that follow are a sawtooth."""
    policy = ScalePolicy(growth_interval=4)
    run = trained(lambda step, scale: scale > 2.0 ** (16 + step // 5 % 2), 100, policy=policy)
    (finding,) = found(run)
    assert finding.rule == "sawtooth"
    assert finding.evidence["skipped"] == run.recent["skipped"].sum()


def test_heavy_batches_at_any_scale_are_no_sawtooth():
    """Skips after growths at widely different scales are no sawtooth."""
    run = trained(lambda step, scale: step % 41 == 0, 600, policy=ScalePolicy(growth_interval=10))
    assert "sawtooth" not in rules_of(run)


def test_spikes_are_no_sawtooth():
    """Skips long after a growth are no sawtooth."""
    run = trained(_spikes(50), 1200, cause="unknown", policy=ScalePolicy(growth_interval=500))
    assert "sawtooth" not in rules_of(run)


def test_inf_most_of_the_time_is_an_overflow():
    """A skip with only NaN is an overflow if at least three others at scales that fit had inf, and not with two."""
    for updates, expected in ((450, False), (350, True)):
        run = trained(_spikes(100), updates)
        rows = (replace(run.skips[0], cause="nan"), *run.skips[1:])
        assert ("nan_not_overflow" in rules_of(replace(run, skips=rows))) == expected


def test_tries_do_not_hide_nan():
    """A NaN skip is reported however many growth skips had inf."""
    policy = ScalePolicy(growth_interval=50)
    run = trained(lambda step, scale: scale > 2.0**16 or step == 520, 600, policy=policy)
    rows = tuple(replace(row, cause="nan") if row.step == 520 else row for row in run.skips)
    assert len(rows) > 4
    assert "nan_not_overflow" in rules_of(replace(run, skips=rows))


def test_a_layer_that_is_always_first_is_named():
    """A parameter that overflows first in all skips is named, and `skip_rate` is dropped."""
    cells = cells_of(*torch_scaler(_spikes(40), 1000, ScalePolicy(growth_interval=100)))
    steps = cells["first"][cells["skipped"] > 0][::-1]
    run = scaler(cells, skips=tuple(skip(int(step), culprits=2) for step in steps))
    (finding,) = found(run)
    assert (finding.rule, finding.parameters) == ("culprit_layer", (NAMES[1],))
    assert finding.severity == "warning"
    assert finding.explanation.endswith(" To tell, log each loss with ampmon.log().")


@pytest.mark.parametrize(("alone", "rule"), [(False, "low_scale"), (True, "culprit_layer")])
def test_a_layer_is_not_blamed_for_a_scale_below_1_that_all_layers_need(alone, rule):
    """A layer that overflows first later does not explain a scale that fell far below 1 because of all layers."""
    run = trained(lambda step, scale: step < 34 or step in (50, 80, 110), 300)
    rows = [skip(each.step, culprits=2 if alone or each.step > 34 else 4) for each in run.skips]
    scales = run.recent["scale_first"].tolist()
    skips = tuple(replace(each, scale=scales[each.step]) for each in rows)
    assert rules_of(replace(run, skips=skips))[0] == rule


def test_where_everything_overflows_no_layer_is_named():
    """If every parameter overflows, no layer is named."""
    assert "culprit_layer" not in rules_of(trained(_spikes(40), 1000))


def _blamed(rows, **fields):
    """The rules found for a run whose skips have these numbers of culprits per optimizer."""
    run = trained(_spikes(40), 1000, policy=ScalePolicy(init_scale=2.0**60, growth_interval=10**6))
    skips = tuple(
        skip(each.step, optimizer=optimizer, culprits=culprits)
        for each, of in zip(run.skips, rows, strict=True)
        for optimizer, culprits in of.items()
    )
    return rules_of(replace(run, skips=skips, **fields))


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"D": 3}] * 21 + [{"G": 1}], False),
        ([{"D": 2}] * 21 + [{"D": 3, "G": 1}], True),
        ([{"D": 3, "G": 1}] * 22, False),
        ([{"D": 2, "G": 1}] * 22, True),
        ([{"D": 1}] * 21 + [{"G": 3}], True),
        ([{"D": 2}] * 21 + [{"G": 1}], True),
    ],
)
def test_where_all_of_an_optimizer_overflows_no_layer_is_named(rows, named):
    """No layer is named if all parameters overflowed. An optimizer that did not skip counts with its most culprits."""
    assert ("culprit_layer" in _blamed(rows)) == named


@pytest.mark.parametrize(("with_gradient", "named"), [(2, False), (3, True)])
def test_parameters_without_a_gradient_are_no_finite_ones(with_gradient, named):
    """Parameters without a gradient do not count as finite when the rule decides whether all overflowed."""
    parameters = parameters_of(dict.fromkeys(NAMES, 0.0))
    parameters.cells["looked"][:, with_gradient:] = 0
    assert ("culprit_layer" in _blamed([{"SGD": 2}] * 22, parameters=parameters)) == named


def test_a_layer_is_not_named_where_all_is_well():
    """A layer that overflows first only in a few normal skips is not named."""
    cells = cells_of(*torch_scaler(lambda step, scale: scale > 2.0**15, 300))
    assert found(scaler(cells, skips=(skip(0, culprits=2),))) == []


@pytest.mark.parametrize("cause", ["inf", "nan"])
@pytest.mark.parametrize(
    ("origin", "rule"), [("forward", "forward_overflow"), ("backward", "backward_overflow")]
)
def test_where_an_overflow_began_is_said(origin, rule, cause):
    """With sampled activations, a skip is reported as a forward or backward overflow, with its module."""
    cells = cells_of(*torch_scaler(_spikes(40), 1000, ScalePolicy(growth_interval=100)))
    steps = cells["first"][cells["skipped"] > 0][::-1]
    rows = tuple(
        skip(int(step), cause=cause, origin=origin, origin_module="blocks.1") for step in steps
    )
    finding = found(scaler(cells, skips=rows))[0]
    assert (finding.rule, finding.parameters) == (rule, ("blocks.1",))


@pytest.mark.parametrize(
    ("modules", "where", "named"),
    [
        ("aaaaa", "5 skips began in the forward pass, in module a:", ("a",)),
        ("aabaa", "5 skips began in the forward pass, 4 of them in module a:", ("a",)),
        ("a....", "5 skips began in the forward pass, 1 of 1 watched ones in module a:", ("a",)),
        ("aab..", "5 skips began in the forward pass, 2 of 3 watched ones in module a:", ("a",)),
        ("abcda", "5 skips began in the forward pass, in 4 modules:", ()),
        (".....", "5 skips began in the forward pass:", ()),
    ],
)
def test_a_module_is_given_no_skips_of_others(modules, where, named):
    """A forward overflow names the module with most of the skips and counts them; without a majority none is named."""
    run = trained(_spikes(100), 600, policy=ScalePolicy(growth_interval=10**6))
    origins = [{"origin_module": each if each != "." else None} for each in modules]
    rows = [
        replace(row, origin="forward", **origin)
        for row, origin in zip(run.skips, origins, strict=True)
    ]
    finding = found(replace(run, skips=tuple(rows)))[0]
    assert finding.title.startswith(where)
    assert finding.parameters == named


def test_a_fix_for_an_endless_forward_overflow_is_written_once_for_a_framework():
    """Under Accelerate, the fix for a forward pass that always overflows has its condition for clipping once."""
    accelerate = ScalePolicy(
        scaler_type="torch.amp.grad_scaler.GradScaler (accelerate.Accelerator)"
    )
    run = trained(lambda step, scale: step >= 100, 130, policy=accelerate)
    lost = [replace(row, origin="forward", loss="not_finite") for row in run.skips]
    finding = found(replace(run, skips=tuple(lost)))[0]
    assert finding.rule == "forward_overflow"
    assert finding.fix.count("if accelerator.sync_gradients:") == 1


@pytest.mark.parametrize(
    ("exponents", "fix"),
    [
        ((-4, -4), "around module att"),
        ((-4, 3), "a smaller learning rate"),
        ((), "a smaller learning rate"),
    ],
)
def test_an_endless_forward_overflow_after_normal_gradients_is_not_blamed_on_the_learning_rate(
    exponents, fix
):
    """If the gradients before an endless forward overflow were normal, the cure is fp32 in its module."""
    run = trained(lambda step, scale: step >= 200, 230, policy=NEVER)
    lost = [
        replace(row, origin="forward", origin_module="att", loss="not_finite") for row in run.skips
    ]
    spans = zip(([0, 50, 100, 150], [185, 195]), exponents, strict=False)
    parts = [samples_of(steps, {exponent: 1.0}) for steps, exponent in spans]
    samples = {"samples": joined_samples(parts)} if parts else {}
    finding = found(replace(run, skips=tuple(lost), **samples))[0]
    assert finding.rule == "forward_overflow"
    assert fix in finding.fix
    assert ("The likely cause is the learning rate" in finding.explanation) == ("rate" in fix)
