"""Rules for the scale: dead, falling, low, on a floor, capped, stuck."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ampmon_server.model.aggregates.updates import LAYOUT
from ampmon_server.model.case import RECENT
from ampmon_server.model.scale_policy import ScalePolicy
from made_cases import cells_of, found, rules_of, scaler, torch_scaler, trained


def test_144_skips_from_65536_are_death():
    """After 143 skips in a row from 65536 one skip is left; after 144 the scale is dead."""
    alive = found(trained(lambda step, scale: True, 143, cause="unknown"))[0]
    dead = found(trained(lambda step, scale: True, 144, cause="unknown"))[0]
    assert alive.rule == "collapse_forecast"
    assert alive.evidence["skips_left"] == 1
    assert (dead.rule, dead.severity, dead.stop) == ("dead_scale", "critical", True)


@pytest.mark.parametrize(("updates", "consequence"), [(150, "dead"), (130, "14 more skips")])
@pytest.mark.parametrize("every", [1, 10])
def test_an_overflow_on_the_way_forward_is_named_before_the_scale_that_it_kills(
    updates, consequence, every
):
    """A forward overflow comes before the scale it kills, and says so; the checkpoint fix for a dead scale is kept."""
    run = trained(lambda step, scale: True, updates)
    rows = tuple(
        replace(row, origin="forward", origin_module="norm") if not row.step % every else row
        for row in run.skips
    )
    first, *others = found(replace(run, skips=rows))
    assert (first.rule, first.severity, first.stop) == ("forward_overflow", "critical", True)
    assert consequence in first.explanation.partition(". ")[0]
    assert first.fix.startswith("with torch.autocast(")
    assert ("saved before step 143" in first.fix) == (updates == 150)
    assert not {each.rule for each in others} & {"dead_scale", "collapse_forecast"}


def test_nan_in_the_input_is_named_before_the_scale_that_it_kills():
    """NaN in the input is the first finding. Its text says that the scale is dead, and its fix covers both."""
    run = trained(lambda step, scale: step >= 50, 250, cause="nan")
    rows = (replace(row, origin="input", loss="not_finite") for row in run.skips)
    (first,) = found(replace(run, skips=tuple(rows)))
    assert (first.rule, first.severity) == ("nan_not_overflow", "critical")
    assert "The scale has been dead" in first.explanation.partition(". ")[0]
    assert first.fix.startswith("assert torch.isfinite(inputs)")
    assert "saved before step" in first.fix


def test_nan_in_the_input_explains_a_scale_that_is_almost_dead():
    """The forecast is part of the NaN's finding, also if the newest updates were not skipped."""
    run = trained(lambda step, scale: step % 5 == 0, 600, cause="nan")
    rows = (replace(row, origin="input", loss="not_finite") for row in run.skips)
    (finding,) = found(replace(run, skips=tuple(rows)))
    assert finding.rule == "nan_not_overflow"
    assert "more skips until 1/scale is infinite" in finding.explanation.partition(". ")[0]


def test_overflows_that_were_seen_early_explain_a_scale_that_dies_later():
    """Modules are watched for a while only. Skips after the death come from the destroyed weights."""
    run = trained(lambda step, scale: step % 8 > 0 or step > 180, 400, cause="nan")
    rows = (
        replace(row, loss="not_finite", origin="forward" if row.step < 40 else None)
        for row in run.skips
    )
    (first, *_) = found(replace(run, skips=tuple(rows)))
    assert first.rule == "forward_overflow"
    assert "The scale has been dead" in first.explanation.partition(". ")[0]
    assert "every step since" not in first.explanation


def test_one_checkpoint_is_named_if_overflows_killed_the_scale():
    """The fix goes back to before the overflows, not to before the death of the scale, and makes a new scaler."""
    run = trained(lambda step, scale: step >= 50, 300)
    rows = (replace(row, loss="not_finite", origin="forward") for row in run.skips)
    (first, *_) = found(replace(run, skips=tuple(rows)))
    assert first.explanation.startswith("The scale has been dead since step 193")
    assert first.fix.count("checkpoint") == first.fix.count("saved before step 50") == 1
    assert "scaler = ampmon.GradScaler" in first.fix


def test_nan_of_unknown_origin_hides_no_overflow_that_killed_the_scale():
    """The loss may ignore an inf in the outputs. Then only the updates that were watched show that it began there."""
    run = trained(lambda step, scale: True, 200, cause="nan")
    rows = (
        replace(row, scale=2.0 ** (16 - row.step), loss="finite", origin="backward")
        if row.step % 4
        else replace(row, loss="not_finite", origin="forward", origin_module="head")
        for row in run.skips
    )
    (first, *others) = found(replace(run, skips=tuple(rows)))
    assert first.rule == "forward_overflow"
    assert "The scale has been dead" in first.explanation.partition(". ")[0]
    assert "dead_scale" not in [each.rule for each in others]


def test_a_scale_that_died_of_something_else_stands_first():
    """Forward overflows before the fall or after the death do not replace the dead scale as the first finding."""
    run = trained(lambda step, scale: step >= 100 or step in {20, 30}, 400)
    rows = tuple(
        replace(row, origin="forward" if row.step < 100 or row.step > 300 else "backward")
        for row in run.skips
    )
    findings = found(replace(run, skips=rows))
    assert [each.rule for each in findings[:2]] == ["dead_scale", "forward_overflow"]


@pytest.mark.parametrize(("left", "expected"), [(31, True), (32, False)])
def test_the_forecast_begins_below_32_skips(left, expected):
    """The forecast is critical with 31 skips left and absent with 32."""
    run = trained(lambda step, scale: True, 144 - left, cause="unknown")
    findings = [each for each in found(run) if each.rule == "collapse_forecast"]
    assert bool(findings) == expected
    assert all(f"{left} more skips" in each.title for each in findings)


def test_a_scale_that_was_dead_is_remembered():
    """A dead scale that was reset is a warning at the step of its death, and does not stop the run."""
    before, after, events, skipped = torch_scaler(lambda step, scale: step < 150, 150)
    fresh = np.full(RECENT, 65536.0)
    cells = cells_of(
        np.append(before, fresh),
        np.append(np.append(after[:-1], 65536.0), fresh),
        [*events, *["steady"] * RECENT],
        [*skipped, *[False] * RECENT],
    )
    finding = next(each for each in found(scaler(cells)) if each.rule == "dead_scale")
    assert (finding.severity, finding.first_step, finding.stop) == ("warning", 143, False)
    assert "was dead in steps 143 – 149:" in finding.title


def test_a_scale_that_was_dead_in_one_step_is_said_in_the_singular():
    """The title names a single step once."""
    cells = cells_of(
        np.array([2.0**-127, *[65536.0] * 3]),
        np.array([2.0**-128, *[65536.0] * 3]),
        ["dead", *["steady"] * 3],
        [True, *[False] * 3],
    )
    finding = next(each for each in found(scaler(cells)) if each.rule == "dead_scale")
    assert finding.title.startswith("The scale was dead in step 0: ")


@pytest.mark.parametrize("since", [0, RECENT])
def test_a_scale_that_died_again_is_dead_since_then(since):
    """A scale that was reset and died again counts as dead since its second death."""
    once = torch_scaler(lambda step, scale: True, 150)
    again = torch_scaler(lambda step, scale: step >= 1500, 1650 + since)
    before, after, events, skipped = (
        [*one, *other] for one, other in zip(once, again, strict=True)
    )
    after[149], events[149] = 65536.0, "manual_set"
    cells = cells_of(np.array(before), np.array(after), events, skipped)
    finding = next(each for each in found(scaler(cells)) if each.rule == "dead_scale")
    assert "dead since step 1\u202f793 " in finding.title
    assert "the next finite gradients destroy" in finding.title
    assert "saved before step 1793" in finding.fix


@pytest.mark.parametrize(("ceiling", "expected"), [(1.0, False), (0.5, True)])
def test_a_scale_below_1_is_a_warning(ceiling, expected):
    """A scale of 0.5 is a warning, a scale of 1 is not."""
    findings = found(trained(lambda step, scale: scale > ceiling, 600))
    assert any(each.severity == "warning" for each in findings) == expected
    assert ("low_scale" in [each.rule for each in findings]) == expected


@pytest.mark.parametrize(("init_scale", "first"), [(65536.0, 16), (0.5, 0)])
def test_a_scale_below_1_is_so_since_it_passed_1(init_scale, first):
    """The finding counts every update below 1, including those only in merged cells."""
    policy = ScalePolicy(init_scale=init_scale, growth_interval=10**6)
    run = trained(lambda step, scale: scale > 0.5, 9000, policy=policy)
    (finding,) = [each for each in found(run) if each.rule == "low_scale"]
    updates = f"{9000 - first:,}".replace(",", "\u202f")
    assert finding.title.endswith(f"for {updates} steps")
    assert (finding.first_step, finding.last_step) == (first, 8999)


def test_a_search_that_passes_1_is_no_skip_rate():
    """Skips of a warm-up that ends below 1 belong to `low_scale`. No first scale below 1 is recommended."""
    run = trained(lambda step, scale: scale > 2.0**-18, 240, cause="unknown")
    assert rules_of(run) == ["low_scale"]


def test_a_scale_that_the_script_varies_is_a_floor():
    """All skips count, also at larger scales than the newest. No number of them makes the scale dead."""
    n = 300
    after = [2.0 ** (20 + step % 3) for step in range(n)]
    cells = cells_of([2.0**20, *after[:-1]], after, ["manual_set"] * n, [True] * n)
    finding = found(scaler(cells))[0]
    assert (finding.rule, finding.severity) == ("scale_floor", "critical")
    assert finding.title.endswith("300 of the last 300 steps were skipped")
    assert "the scale is dead" not in finding.explanation


def test_a_scale_held_by_hand_is_a_floor():
    """A scale set to 2**20 at every step, where a third of the batches overflow, is a floor that explains the skips."""
    n = 300
    same = np.full(n, 2.0**20)
    cells = cells_of(same, same, ["manual_set"] * n, [step % 3 == 0 for step in range(n)])
    (finding,) = found(scaler(cells, policy=ScalePolicy(init_scale=2.0**20)))
    assert (finding.rule, finding.severity) == ("scale_floor", "critical")
    assert finding.title.endswith("100 of the last 300 steps were skipped at it")
    assert "update()" in finding.explanation


def test_a_static_scale_that_fits_is_healthy():
    """A static scale without skips is healthy."""
    same = np.full(3000, 1024.0)
    assert found(scaler(cells_of(same, same, ["manual_set"] * 3000, [False] * 3000))) == []


def test_a_scale_put_back_up_is_a_floor():
    """Skips after which the scale is restored each time are a floor, and not a warm-up."""
    n = 100
    same = np.full(n, 2.0**16)
    cells = cells_of(same, same / 2, ["backoff"] * n, [True] * n)
    findings = found(scaler(cells))
    assert (findings[0].rule, findings[0].severity) == ("scale_floor", "critical")
    assert "because the script or a wrapper sets it back" in findings[0].explanation
    assert "calibration" not in [each.rule for each in findings]


def test_an_infinite_scale_gets_a_finite_one():
    """The fix for a scale that is infinite begins with torch's default, not with a number that Python lacks."""
    same = np.full(50, np.inf)
    cells = cells_of(same, same, ["manual_set"] * 50, [True] * 50)
    finding = next(each for each in found(scaler(cells)) if each.rule == "scale_floor")
    assert finding.fix.startswith("scaler = ampmon.GradScaler(init_scale=65536)")
    assert "∞" in finding.title


def test_two_skips_on_a_floor_are_too_few():
    """Three skips that leave the scale unchanged are a floor, two are not."""
    same = np.full(600, 1.0)
    for times, expected in ((2, False), (3, True)):
        skips = [step >= 300 and step < 300 + times for step in range(600)]
        cells = cells_of(same, same, ["backoff" if each else "steady" for each in skips], skips)
        assert ("scale_floor" in rules_of(scaler(cells))) == expected


def test_a_capped_scale_is_a_notice():
    """Growth of a scale at its cap is a notice."""
    policy = ScalePolicy(init_scale=2.0**126, growth_interval=20)
    findings = found(trained(lambda step, scale: False, 100, policy=policy))
    assert [(each.rule, each.severity) for each in findings] == [("scale_cap", "notice")]
    assert "2¹²⁷" in findings[0].title


@pytest.mark.parametrize(("updates", "expected"), [(280, False), (330, True)])
def test_a_scale_that_does_not_grow_is_stuck(updates, expected):
    """Three growth intervals without skip or growth are a warning, 2.8 are not."""
    same = np.full(updates, 1024.0)
    cells = cells_of(same, same, ["steady"] * updates, [False] * updates)
    policy = ScalePolicy(growth_interval=100, init_scale=1024.0)
    assert ("stuck_scale" in rules_of(scaler(cells, policy=policy))) == expected


@pytest.mark.parametrize(
    ("tracker", "said"),
    [
        (99, "should grow every 100"),
        (100, ""),
        (199, ""),
        (200, "cannot grow"),
        (330, "cannot grow"),
    ],
)
def test_a_growth_tracker_past_its_interval_is_stuck_for_good(tracker, said):
    """A growth tracker far beyond the interval is found, and the fix sets it. Just beyond it nothing is found."""
    same = np.full(331, 1024.0)
    cells = cells_of(same, same, ["steady"] * 331, [False] * 331)
    policy = ScalePolicy(growth_interval=100, init_scale=1024.0)
    findings = found(scaler(cells, policy=policy, growth_tracker=tracker))
    assert [each.rule for each in findings] == ["stuck_scale"] * bool(said)
    assert all(said in each.title for each in findings)
    assert all(("_growth_tracker" in each.fix) == (tracker >= 200) for each in findings)


def test_a_tracker_past_its_interval_is_reported_however_coarse_the_cells():
    """A growth tracker beyond the interval is found even if the newest cell also contains a growth."""
    run = trained(lambda step, scale: False, 1000, policy=ScalePolicy(growth_interval=500))
    past = replace(run, policy=ScalePolicy(growth_interval=200), growth_tracker=499)
    coarse = replace(past, updates=LAYOUT.merge(run.updates, np.array([0])))
    for case in (past, coarse):
        (finding,) = found(case)
        assert (finding.rule, finding.last_step) == ("stuck_scale", 999)
        assert "cannot grow" in finding.title


def test_growths_that_are_taken_back_are_no_growths():
    """A scale that is restored after each growth is stuck."""
    same = np.full(200, 1024.0)
    events = ["grow" if step % 20 == 19 else "steady" for step in range(200)]
    after = np.where(np.array(events) == "grow", 2048.0, 1024.0)
    cells = cells_of(same, after, events, [False] * 200)
    policy = ScalePolicy(growth_interval=20, init_scale=1024.0)
    assert rules_of(scaler(cells, policy=policy)) == ["stuck_scale"]


def test_a_growth_interval_without_end_is_not_stuck():
    """A scaler whose growth_interval is practically infinite is not stuck."""
    same = np.full(3000, 1024.0)
    cells = cells_of(same, same, ["steady"] * 3000, [False] * 3000)
    assert found(scaler(cells, policy=ScalePolicy(growth_interval=2**53 - 1))) == []
