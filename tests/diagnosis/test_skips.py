"""Rules of skipped updates: how many, how many in a row, what for, and where they began."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ampmon_server.model.case import ScalePolicy
from made_cases import (
    NAMES,
    cells_of,
    found,
    parameters_of,
    rules_of,
    scaler,
    skip,
    torch_scaler,
    trained,
)


NEVER = ScalePolicy(growth_interval=10**9)


def test_a_run_that_skips_nothing_is_healthy():
    """Where nothing was skipped nothing is found."""
    assert found(trained(lambda step, scale: False, 3000)) == []


@pytest.mark.parametrize("ceiling", [2.0**6, 2.0**12, 2.0**15])
def test_the_search_for_the_scale_is_a_notice_at_most(ceiling):
    """Skips with which a run begins, until the scale fits, are no warning."""
    findings = found(trained(lambda step, scale: scale > ceiling, 1500))
    assert all(finding.severity == "notice" for finding in findings)


def test_a_long_search_says_which_scale_to_begin_with():
    """Six skips in the search for the scale make a notice that has the scale that was found."""
    (finding,) = found(trained(lambda step, scale: scale > 2.0**10, 200))
    assert (finding.rule, finding.severity) == ("calibration", "notice")
    assert "init_scale=1024)" in finding.fix
    assert "6" in finding.title


def test_torch_s_own_tries_are_no_finding():
    """One skip after each growth, every 2000 updates, is how torch works."""
    run = trained(lambda step, scale: scale > 2.0**16, 2 * 2000 + 100, policy=ScalePolicy())
    assert run.recent["skipped"].sum() == 1
    assert found(run) == []


def _spikes(every):
    """A batch in ``every`` overflows at any scale, once the first hundred are over."""
    return lambda step, scale: step >= 100 and step % every == 0


@pytest.mark.parametrize(
    ("every", "severity"), [(600, None), (400, "notice"), (90, "warning"), (19, "critical")]
)
def test_skip_rate_has_its_levels(every, severity):
    """0.2 %, 1 % and 5 % of the last thousand updates make a notice, a warning and a critical finding."""
    run = trained(_spikes(every), 1200, cause="unknown", policy=ScalePolicy(growth_interval=30))
    findings = [each for each in found(run) if each.rule == "skip_rate"]
    assert [each.severity for each in findings] == ([severity] if severity else [])


def test_a_few_updates_do_not_make_a_rate():
    """Two skips of eighty may be chance: what is at least the rate is below a warning."""
    run = trained(lambda step, scale: step in {50, 75}, 80, cause="unknown")
    assert all(finding.severity == "notice" for finding in found(run))


@pytest.mark.parametrize(
    ("steps", "severity"), [({19, 24, 64}, "notice"), (range(19, 120, 12), "warning")]
)
def test_a_few_skips_of_a_gradient_that_grows_at_first_are_a_notice(steps, severity):
    """Three skips, each at a lower scale than the one before, go on with the search; nine at equal distances don't."""
    finding, *_ = found(
        trained(lambda step, scale: step in steps, 120, cause="unknown", policy=NEVER)
    )
    assert (finding.rule, finding.severity) == ("skip_rate", severity)


@pytest.mark.parametrize(
    ("length", "severity"), [(3, None), (4, "notice"), (8, "warning"), (16, "critical")]
)
def test_skips_in_a_row_have_their_levels(length, severity):
    """Four, eight and sixteen in a row make a notice, a warning and a critical finding."""
    run = trained(lambda step, scale: 1500 <= step < 1500 + length, 2600, cause="unknown")
    findings = [each for each in found(run) if each.rule == "consecutive_skips"]
    assert [each.severity for each in findings] == ([severity] if severity else [])


def test_skips_in_a_row_until_now_stop_the_run():
    """Where the last twenty updates were all skipped nothing is trained, and the finding says to stop."""
    (finding, *_) = found(trained(lambda step, scale: step >= 200, 220, cause="unknown"))
    assert finding.rule in {"consecutive_skips", "collapse_forecast"}
    assert finding.stop
    assert (finding.first_step, finding.last_step) == (200, 219)


def test_a_search_that_passes_1_is_no_search_any_more():
    """Skips in a row from the first update on are critical once the scale is below 1."""
    assert found(trained(lambda step, scale: True, 15, cause="unknown"))[0].severity == "notice"
    assert found(trained(lambda step, scale: True, 18, cause="unknown"))[0].severity == "critical"


def test_nan_at_a_scale_that_fits_is_no_overflow():
    """A skip for NaN without inf, at a scale that fits, is a warning; two soon after one another are critical."""
    once = trained(lambda step, scale: step == 300, 400, cause="nan")
    twice = trained(lambda step, scale: step in {300, 360}, 400, cause="nan")
    apart = trained(lambda step, scale: step in {100, 360}, 400, cause="nan")
    severities = [found(each)[0].severity for each in (once, twice, apart)]
    assert severities == ["warning", "critical", "warning"]
    assert {found(each)[0].rule for each in (once, twice, apart)} == {"nan_not_overflow"}


def test_nan_for_ever_stops_the_run_and_explains_its_skips():
    """NaN at every update is the one finding of its skips, and says to stop."""
    run = trained(lambda step, scale: step >= 100, 140, cause="nan")
    (finding, *rest) = found(run)
    assert (finding.rule, finding.stop) == ("nan_not_overflow", True)
    assert not {each.rule for each in rest} & {"skip_rate", "consecutive_skips", "low_scale"}


def _told(run, **fields):
    """The same run, with the same word on each of its skips."""
    return replace(run, skips=tuple(replace(row, **fields) for row in run.skips))


def test_nan_of_a_finite_loss_is_an_overflow():
    """Where the loss was finite, NaN without inf came of the scale: the skips are outlier batches, told as those."""
    run = trained(lambda step, scale: step % 90 == 89, 500, cause="nan", policy=NEVER)
    assert found(run)[0].rule == "nan_not_overflow"
    for loss in ("finite", "overflowed"):
        (finding,) = found(_told(run, loss=loss, origin="backward"))
        assert (finding.rule, finding.severity) == ("skip_rate", "notice")
        assert "at a steady scale, every 90 steps" in finding.title


def test_nan_of_a_finite_loss_that_nothing_enlarges_is_no_overflow():
    """At a scale of 1 or less, NaN of a finite loss begins in the backward pass: no smaller scale cures it."""
    run = trained(lambda step, scale: step >= 20, 60, cause="nan")
    rows = [replace(row, loss="finite", scale=2.0 ** (36 - row.step)) for row in run.skips]
    finding = found(replace(run, skips=tuple(rows)))[0]
    assert (finding.rule, finding.stop) == ("nan_not_overflow", True)
    assert finding.title.startswith("40 steps were skipped for NaN that began backward")
    assert "activations=1" in finding.fix


@pytest.mark.parametrize("cause", ["inf", "nan", "unknown"])
@pytest.mark.parametrize(
    ("origin", "why", "fix"),
    [
        (None, "because the loss was not finite", "model=model)"),
        ("input", "because the model's input was not finite", "assert torch.isfinite(inputs)"),
        ("loss", "because the loss of finite outputs was not finite", "loss_function(outputs.floa"),
    ],
)
def test_a_loss_that_is_not_finite_is_beyond_any_scale(cause, origin, why, fix):
    """Whatever the gradients held, and at any scale; where it began is said, as far as that was seen at one."""
    run = _told(trained(_spikes(100), 600, cause=cause, policy=NEVER), loss="not_finite")
    last, *before = run.skips
    (finding,) = found(replace(run, skips=(replace(last, origin=origin), *before)))
    assert (finding.rule, finding.severity) == ("nan_not_overflow", "warning")
    assert finding.title.startswith(f"5 steps were skipped {why}")
    assert fix in finding.fix
    assert "set_detect_anomaly" not in finding.fix


def test_skips_that_were_not_watched_count_as_those_that_were():
    """One skip in which a module was seen tells where the others with a loss that was not finite began."""
    run = _told(trained(_spikes(100), 600, cause="nan", policy=NEVER), loss="not_finite")
    last, *before = run.skips
    seen = replace(last, origin="forward", origin_module="norm")
    finding = found(replace(run, skips=(seen, *before)))[0]
    assert (finding.rule, finding.parameters) == ("forward_overflow", ("norm",))
    assert finding.title.startswith("5 skips began forward, 1 of them in module norm")


def test_the_rank_whose_loss_was_not_finite_tells_where_it_began():
    """Ranks that average their gradients all have its NaN, and their own losses are finite."""
    run = trained(_spikes(100), 600, cause="nan", policy=NEVER)
    others = _told(run, loss="finite", origin="backward").skips
    own = _told(run, loss="not_finite", origin="input", rank=1).skips
    finding = found(replace(run, skips=(*others, *own)))[0]
    assert finding.title.startswith("5 steps were skipped because the model's input was not")


@pytest.mark.parametrize("cause", ["inf", "inf+nan", "unknown"])
def test_inf_among_nan_is_an_overflow(cause):
    """Where there was inf, or nobody counted, nothing is said of NaN."""
    assert "nan_not_overflow" not in rules_of(trained(_spikes(50), 800, cause=cause))


def test_nan_of_a_scale_too_large_is_the_search():
    """NaN without inf at scales at which nothing has gone through yet may be an overflow."""
    run = trained(lambda step, scale: scale > 2.0**8, 200, cause="nan")
    assert "nan_not_overflow" not in rules_of(run)


def test_nan_after_a_growth_is_a_try():
    """NaN without inf right after the scale has grown may be an overflow."""
    policy = ScalePolicy(growth_interval=100)
    run = trained(lambda step, scale: scale > 2.0**16, 1000, cause="nan", policy=policy)
    assert "nan_not_overflow" not in rules_of(run)


def test_a_short_growth_interval_costs_what_it_costs():
    """With a growth_interval of 10 one update in 11 is lost to trying, which is critical and explains the skips."""
    run = trained(lambda step, scale: scale > 2.0**16, 600, policy=ScalePolicy(growth_interval=10))
    (finding, *rest) = found(run)
    assert (finding.rule, finding.severity) == ("sawtooth", "critical")
    assert "growth_interval=2000" in finding.fix
    assert not {each.rule for each in rest} & {"skip_rate", "culprit_layer"}


def test_tries_of_an_interval_that_was_left_are_no_sawtooth():
    """Where the interval is 2000 by now, tries every 10 updates are over; where it is 20 they are judged by those."""
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
    """Tries that are taken back some updates later, but before the next one, are tries too."""
    policy = ScalePolicy(growth_interval=10)

    def overflows(step, scale):
        return scale > 2.0**16 and any(step % each == 0 for each in (5, 7))

    assert rules_of(trained(overflows, 600, policy=policy))[0] == "sawtooth"


def test_heavy_batches_at_any_scale_are_no_sawtooth():
    """Skips after growths, but at scales far apart, are not blamed on trying."""
    run = trained(lambda step, scale: step % 41 == 0, 600, policy=ScalePolicy(growth_interval=10))
    assert "sawtooth" not in rules_of(run)


def test_spikes_are_no_sawtooth():
    """Skips that come long after a growth are not blamed on trying."""
    run = trained(_spikes(50), 1200, cause="unknown", policy=ScalePolicy(growth_interval=500))
    assert "sawtooth" not in rules_of(run)


def test_inf_most_of_the_time_is_an_overflow():
    """A skip with NaN alone among three with inf, at scales that had fit, is one of their kind; among two it is not."""
    for updates, expected in ((450, False), (350, True)):
        run = trained(_spikes(100), updates)
        rows = (replace(run.skips[0], cause="nan"), *run.skips[1:])
        assert ("nan_not_overflow" in rules_of(replace(run, skips=rows))) == expected


def test_tries_do_not_hide_nan():
    """A skip for NaN alone is told, however many of torch's own tries held inf."""
    policy = ScalePolicy(growth_interval=50)
    run = trained(lambda step, scale: scale > 2.0**16 or step == 520, 600, policy=policy)
    rows = tuple(replace(row, cause="nan") if row.step == 520 else row for row in run.skips)
    assert len(rows) > 4
    assert "nan_not_overflow" in rules_of(replace(run, skips=rows))


def test_a_layer_that_is_always_first_is_named():
    """Where one parameter is the first to overflow in all skips, it is named in their place."""
    cells = cells_of(*torch_scaler(_spikes(40), 1000, ScalePolicy(growth_interval=100)))
    steps = cells["first"][cells["skipped"] > 0][::-1]
    run = scaler(cells, skips=tuple(skip(int(step), culprits=2) for step in steps))
    (finding, *rest) = found(run)
    assert (finding.rule, finding.parameters) == ("culprit_layer", (NAMES[1],))
    assert finding.severity == "warning"
    assert "skip_rate" not in [each.rule for each in rest]


def test_where_everything_overflows_no_layer_is_named():
    """The first parameter tells nothing where all of them are culprits."""
    assert "culprit_layer" not in rules_of(trained(_spikes(40), 1000))


def _blamed(rows, **fields):
    """A run in which each of these is what the ledger says of a skip: the culprits of each optimizer that skipped."""
    run = trained(_spikes(40), 1000, policy=ScalePolicy(init_scale=2.0**60, growth_interval=10**6))
    told = tuple(
        skip(each.step, optimizer=optimizer, culprits=culprits)
        for each, of in zip(run.skips, rows, strict=True)
        for optimizer, culprits in of.items()
    )
    return rules_of(replace(run, skips=told, **fields))


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
    """Optimizers that skipped without another are measured by the most that each had, else by all there is."""
    assert ("culprit_layer" in _blamed(rows)) == named


@pytest.mark.parametrize(("with_gradient", "named"), [(2, False), (3, True)])
def test_parameters_without_a_gradient_are_no_finite_ones(with_gradient, named):
    """Where all that have a gradient in the samples overflow, the first tells nothing, whatever else has a name."""
    parameters = parameters_of(dict.fromkeys(NAMES, 0.0))
    parameters.cells["looked"][:, with_gradient:] = 0
    assert ("culprit_layer" in _blamed([{"SGD": 2}] * 22, parameters=parameters)) == named


def test_a_layer_is_not_named_where_all_is_well():
    """That one layer is the first in torch's few tries is not worth a word."""
    cells = cells_of(*torch_scaler(lambda step, scale: scale > 2.0**15, 300))
    assert found(scaler(cells, skips=(skip(0, culprits=2),))) == []


@pytest.mark.parametrize("cause", ["inf", "nan"])
@pytest.mark.parametrize(
    ("origin", "rule"), [("forward", "forward_overflow"), ("backward", "backward_overflow")]
)
def test_where_an_overflow_began_is_said(origin, rule, cause):
    """Where activations were sampled, skips that began forward and backward are told apart, with the module.

    Also where nothing but NaN is left of the overflow in the parameters' gradients.
    """
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
        ("aaaaa", "5 skips began forward, in module a:", ("a",)),
        ("aabaa", "5 skips began forward, 4 of them in module a:", ("a",)),
        ("a....", "5 skips began forward, 1 of them in module a:", ("a",)),
        ("abcda", "5 skips began forward, in 4 modules:", ()),
        (".....", "5 skips began forward:", ()),
    ],
)
def test_a_module_is_given_no_skips_of_others(modules, where, named):
    """Of overflows on the way forward those in the module named are counted; where none has most, none is named."""
    run = trained(_spikes(100), 600, policy=ScalePolicy(growth_interval=10**6))
    origins = [{"origin_module": each if each != "." else None} for each in modules]
    rows = [
        replace(row, origin="forward", **origin)
        for row, origin in zip(run.skips, origins, strict=True)
    ]
    finding = found(replace(run, skips=tuple(rows)))[0]
    assert finding.title.startswith(where)
    assert finding.parameters == named
