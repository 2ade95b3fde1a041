"""What holds of every rule, whatever the run."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampmon_server.analysis.diagnosis import diagnose, effective, rules
from ampmon_server.analysis.diagnosis.rules import RULES
from ampmon_server.charts import FIGURES
from ampmon_server.model.case import Case
from ampmon_server.model.severities import RANKS
from ampmon_server.model.thresholds import Levels, Thresholds
from made_cases import any_cases, found


PAGES = Path(__file__).parents[2] / "docs" / "findings"

SOME = settings()


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
    """Of any run whatever, findings have a title with a number, a known figure and steps of the run."""
    first, last = _steps(case)
    judged = diagnose(case, Thresholds())
    assert judged.failed == {}
    for finding in judged.findings:
        if finding.rule == "fused_sgd":  # a lint: the training process's own words
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
@given(any_cases(), st.sampled_from([f.name for f in fields(Thresholds)]))
def test_higher_thresholds_find_no_more(case: Case, name: str):
    """With every level of a threshold raised, nothing is as a whole judged worse than before."""
    default = Thresholds()
    levels = getattr(default, name)
    if not isinstance(levels, Levels):
        return
    higher = Levels(*(None if level is None else 2 * level + 1 for level in levels))
    before = diagnose(case, default).severity
    after = diagnose(case, replace(default, **{name: higher})).severity
    assert _rank(after) >= _rank(before)


def _rank(severity: str | None) -> int:
    return RANKS[severity] if severity else len(RANKS)


def test_the_worst_comes_first():
    """Findings are in order of severity, and the verdict is the first of them."""
    assert found(Case(run_id="0", now=0)) == []
    assert diagnose(Case(run_id="0", now=0), Thresholds()).verdict == "healthy"
    run = Case(run_id="0", now=0, status="crashed", lost=3)
    diagnosis = diagnose(run, Thresholds())
    assert [each.rule for each in diagnosis.findings] == ["crashed", "telemetry_gaps"]
    assert (diagnosis.severity, diagnosis.verdict) == ("critical", diagnosis.findings[0].title)


def test_every_rule_has_its_page():
    """Each rule's file has a page in docs/findings of the same name, and the index names it."""
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
    """Its table has those that its rule reads and its text names, with their numbers; the text says the same ones."""
    text = page.read_text(encoding="utf-8")
    told = dict(ROW.findall(text))
    known = {each.name: getattr(Thresholds(), each.name) for each in fields(Thresholds)}
    (rule,) = [*Path(rules.__path__[0]).rglob(f"{page.stem}.py")] or [None]
    read = re.findall(r"\bthresholds\.(\w+)", rule.read_text("utf-8")) if rule else ()
    prose = " ".join(ROW.sub("", text).split())
    named = {name for name in known if f"`{name}`" in prose}
    assert {name for name in known if name in read} | named == set(told) & set(known)
    numbers = {*re.findall(r"\d+(?:\.\d+)?(?: %)?", prose)}
    numbers |= {number for word, number in WORDS.items() if re.search(rf"\b{word}\b", prose)}
    for name in set(told) & set(known):
        assert f"{told[name]} ".startswith(f"{_cell(known[name])} "), name
        if name in named:
            assert {*_numbers(known[name])} <= numbers, name


def test_every_threshold_is_on_a_page():
    """Who wants to change one finds its name and its number at the finding."""
    told = {name for page in PAGES.glob("*.md") for name, _ in ROW.findall(page.read_text("utf-8"))}
    assert {each.name for each in fields(Thresholds)} <= told


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
