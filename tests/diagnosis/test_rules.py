"""Properties of every rule, for any run."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis import rules
from ampmon_server.analysis.diagnosis.diagnose import diagnose
from ampmon_server.analysis.diagnosis.effective import effective
from ampmon_server.analysis.diagnosis.explaining import explained
from ampmon_server.analysis.diagnosis.rules import RULES
from ampmon_server.charts import FIGURES
from ampmon_server.model.aggregates import updates as update_cells
from ampmon_server.model.aggregates.merging import starts_of
from ampmon_server.model.aggregates.updates import EVENTS
from ampmon_server.model.case import Case, ScalerCase
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import Resume, empty_gradients
from ampmon_server.model.thresholds import RANKS, Levels, Thresholds
from made_cases import (
    START,
    case,
    cells_of,
    event,
    found,
    no_parameters,
    parameters_of,
    samples_of,
    scaler,
    skip,
)


PAGES = Path(__file__).parents[2] / "docs" / "findings"

SOME = settings()


@st.composite
def any_cases(draw: st.DrawFn) -> Case:
    """Any run: up to two scalers, dead or non-finite scales, gaps, samples and skips anywhere."""
    scalers = [_any_scaler(draw) for _ in range(draw(st.integers(0, 2)))]
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = ("updates", "skipped", "scheduled", "lost", "dropped", "rivals", "attempts")
    return case(
        *scalers,
        **{name: int(seed.choice([0, 1, 7, 10**12])) for name in counts},
        status=draw(st.sampled_from(["running", "finished", "crashed", "silent"])),
        last_time=draw(st.sampled_from([None, 0, START])),
        update_us=draw(st.sampled_from([0.0, 1e5, float("nan"), float("inf")])),
        events=draw(st.sampled_from(_EVENTS)),
        config=draw(
            st.sampled_from([{}, {"batch_size": 32}, {"batch": True}, {"batch_size": "x"}])
        ),
    )


_EVENTS = (
    (),
    (event("exception", type="RuntimeError"), event("lint")),
    (event("lint", rule="fused_sgd", severity="warning", title="A", explanation="B", fix=7),),
    (event("lint", rule="fused_sgd", severity="worst", title="A", explanation="B", fix="C"),),
    (event("lint", rule=["x"], severity=["warning"], parameters="abc"),),
    (event("exception", type=None), event("dropped", count="many")),
)


def _any_scaler(draw: st.DrawFn) -> ScalerCase:
    n = draw(st.sampled_from([0, 1, 2, 17, 40, 200]))
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 2.0 ** seed.integers(*draw(st.sampled_from([(10, 18), (-140, 128)])), n)
    odd = draw(st.sampled_from([1.0, 0.0, np.inf, np.nan, -1.0, 1000.0]))
    scale = np.where(seed.random(n) < 0.2, scale * odd, scale)
    after = draw(st.sampled_from([np.roll(scale, -1), scale, scale / 2]))
    cells = cells_of(
        scale,
        after,
        [EVENTS[code] for code in seed.integers(0, len(EVENTS), n)],
        list(seed.random(n) < draw(st.sampled_from([0.0, 0.05, 0.5, 1.0]))),
        first=draw(st.sampled_from([0, 7, 2**31])),
    )
    if draw(st.booleans()) and n:  # pruned or lost rows
        cells = update_cells.LAYOUT.merge(cells, starts_of(cells["first"] // 16))
    cells = cells[seed.random(len(cells)) < draw(st.sampled_from([1.0, 0.8]))]
    steps = cells["first"]
    picked = np.sort(seed.choice(steps, seed.integers(0, len(steps) + 1), replace=False))
    exponents = {int(at): float(seed.random() / 4) for at in seed.integers(-40, 24, 3)}
    return scaler(
        cells,
        policy=draw(_POLICIES),
        samples=draw(
            st.sampled_from(
                [
                    empty_gradients(),
                    samples_of([int(s) for s in picked], exponents),
                    samples_of([int(s) for s in picked], exponents, looked=1600),
                    samples_of([int(s) for s in picked], {}, zeros=1.0),
                ]
            )
        ),
        parameters=draw(
            st.sampled_from(
                [no_parameters(), no_parameters(()), parameters_of({"a.weight": 0.9, "b": 0.1})]
            )
        ),
        skips=tuple(
            skip(
                int(step),
                cause=str(seed.choice(["inf", "nan", "inf+nan", "unknown"])),
                culprits=int(seed.integers(0, 4)),
                origin=seed.choice([None, "input", "forward", "loss", "backward"]),
                loss=seed.choice([None, "finite", "overflowed", "not_finite"]),
                origin_module=seed.choice([None, "head"]),
            )
            for step in steps[seed.random(len(steps)) < 0.5][::-1]
        ),
        forgotten=draw(
            st.sampled_from(
                [(), tuple(Resume(int(s), START, 1024.0, 65536.0, False) for s in steps[:2])]
            )
        ),
        ranks=draw(st.sampled_from([{}, {0: cells, 1: cells}, {0: cells, 3: cells[::2]}])),
        growth_tracker=draw(st.sampled_from([None, 0, 9, 10**6])),
    )


_LEVELS = [each.name for each in fields(Thresholds) if isinstance(each.default, Levels)]
"""The thresholds that have a level for each severity."""

_POLICIES = st.builds(
    ScalePolicy,
    init_scale=st.sampled_from([0.0, 1.0, 65536.0, 2.0**127]),
    growth_factor=st.sampled_from([0.0, 1.0, 1.5, 2.0]),
    backoff_factor=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    growth_interval=st.sampled_from([0, 1, 10, 2000, 2**53 - 1]),
)


def _steps(case: Case) -> tuple[float, float]:
    cells = [
        cells
        for scaler in case.scalers
        for cells in (scaler.first, scaler.updates, scaler.recent)
        if len(cells)
    ]
    if not cells:
        return -np.inf, np.inf
    return min(c["first"][0] for c in cells), max(c["last"][-1] for c in cells)


@SOME
@given(any_cases())
def test_no_rule_raises_and_all_it_says_can_be_read(case: Case):
    """No rule raises; every finding has a known severity and figure, an explanation and steps of the run."""
    first, last = _steps(case)
    judged = diagnose(case, Thresholds())
    assert judged.failed == {}
    for finding in judged.findings:
        if finding.rule == "fused_sgd":  # a lint has the training process's own words
            continue
        assert finding.severity in RANKS
        assert any(sign.isdigit() for sign in finding.title) or finding.rule in {"crashed", "bf16"}
        assert finding.explanation
        assert "{" not in finding.explanation + finding.title
        assert finding.figure in FIGURES
        ends = [finding.first_step, finding.last_step]
        assert all(end is None or first <= end <= last for end in ends)
        assert None in ends or ends[0] <= ends[1]
    assert effective(case).sentence


@SOME
@given(any_cases())
def test_whatever_the_run_at_most_one_fix_is_recommended(case: Case):
    """At most one fix is recommended, and no two findings have the same fix."""
    fixes = [(each.fix, each.second) for each in found(case) if each.fix]
    assert sum(not second for _, second in fixes) <= 1
    assert len({fix for fix, _ in fixes}) == len(fixes)


@SOME
@given(any_cases(), st.sampled_from(_LEVELS))
def test_higher_thresholds_find_no_more(case: Case, name: str):
    """Raising the levels of a threshold never makes the diagnosis more severe."""
    default = Thresholds()
    higher = Levels(*(None if level is None else 2 * level + 1 for level in getattr(default, name)))
    before = diagnose(case, default).severity
    after = diagnose(case, replace(default, **{name: higher})).severity
    assert _rank(after) >= _rank(before)


def _rank(severity: str | None) -> int:
    return RANKS[severity] if severity else len(RANKS)


def test_the_worst_comes_first():
    """Findings are sorted by severity, and the verdict is the title of the first."""
    assert found(Case(run_id="0", now=0)) == []
    assert diagnose(Case(run_id="0", now=0), Thresholds()).verdict == "healthy"
    run = Case(run_id="0", now=0, status="crashed", lost=3)
    diagnosis = diagnose(run, Thresholds())
    assert [each.rule for each in diagnosis.findings] == ["crashed", "telemetry_gaps"]
    assert (diagnosis.severity, diagnosis.verdict) == ("critical", diagnosis.findings[0].title)


def test_every_rule_has_its_page():
    """Every rule has a page of its name in docs/findings, listed in the index."""
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    for rule in RULES:
        name = rule.__module__.rpartition(".")[2]
        if name not in {"each", "lints"}:
            assert (PAGES / f"{name}.md").is_file(), name
            assert f"({name}.md)" in index


ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
WORDS = {"three": "3", "four": "4", "eight": "8", "ten": "10"}


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_gives_the_thresholds_that_its_finding_goes_by(page: Path):
    """The table on a page has the thresholds its rule reads or its text names, with the same values as the code."""
    text = page.read_text(encoding="utf-8")
    documented = dict(ROW.findall(text))
    known = {each.name: getattr(Thresholds(), each.name) for each in fields(Thresholds)}
    (rule,) = [*Path(rules.__path__[0]).rglob(f"{page.stem}.py")] or [None]
    read = re.findall(r"\bthresholds\.(\w+)", rule.read_text("utf-8")) if rule else ()
    prose = " ".join(ROW.sub("", text).split())
    named = {name for name in known if f"`{name}`" in prose}
    assert {name for name in known if name in read} | named == set(documented) & set(known)
    numbers = {*re.findall(r"\d+(?:\.\d+)?(?: %)?", prose)}
    numbers |= {number for word, number in WORDS.items() if re.search(rf"\b{word}\b", prose)}
    for name in set(documented) & set(known):
        assert f"{documented[name]} ".startswith(f"{_cell(known[name])} "), name
        if name in named:
            assert {*_numbers(known[name])} <= numbers, name


def test_every_threshold_is_on_a_page():
    """Every threshold is in the table of a page."""
    rows = {name for page in PAGES.glob("*.md") for name, _ in ROW.findall(page.read_text("utf-8"))}
    assert {each.name for each in fields(Thresholds)} <= rows


def _numbers(threshold: Levels | float) -> list[str]:
    levels = [each for each in threshold if each] if isinstance(threshold, Levels) else [threshold]
    return [_number(level) for level in levels]


def _number(level: float) -> str:
    return f"{level:g}" if level >= 1 else f"{100 * level:g} %"


def _cell(threshold: Levels | float) -> str:
    if not isinstance(threshold, Levels):
        return _number(threshold)
    return ", ".join(
        f"{severity} {_number(level)}"
        for severity, level in zip(Levels._fields, threshold, strict=True)
        if level is not None
    )


def test_new_scalers_explain_the_search_of_each_for_its_scale():
    """A scaler for each epoch is the only finding, although each of the scalers searched for its scale."""
    scalers = [
        Finding(rule="calibration", severity="notice", title="", explanation="", scaler=name)
        for name in "abc"
    ]
    cause = Finding(
        rule="scaler_made_anew", severity="warning", title="", explanation="", scaler="c"
    )
    assert explained([cause, *scalers]) == [cause]


@pytest.mark.parametrize(("poisoned", "first"), [(213, "forward_overflow"), (20, "poisoned_state")])
def test_what_destroyed_the_weights_is_named_before_them(poisoned, first):
    """Weights that a dead scale destroyed are its symptom, and it one of older overflows in the forward pass."""
    given = {"severity": "critical", "title": "", "explanation": "", "fix": ""}
    findings = [
        Finding(rule="poisoned_state", first_step=poisoned, **given),
        Finding(
            rule="dead_scale", first_step=208, last_step=299, evidence={"began": "forward"}, **given
        ),
        Finding(rule="forward_overflow", first_step=18, last_step=299, **given),
    ]
    rules = [each.rule for each in explained(findings)]
    assert rules == [first, "dead_scale"][: 1 if first == "forward_overflow" else 2]
