"""The clinic's short form, its criteria for a right verdict, and its random patients."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import expect

from ampmon_server.pages.assets import plotly_script
from browser import chromium
from campaigns.clinic import drawn, report
from campaigns.clinic.cure import places_of
from campaigns.clinic.drawn import find
from campaigns.clinic.patient import Plan
from campaigns.clinic.patients import HEALTHY, PATIENTS, SICK
from campaigns.clinic.recommended import Recommendations
from campaigns.clinic.session import Session
from campaigns.clinic.sick_numbers import WideFeature
from campaigns.clinic.verdict import Cure, Verdict, verdict
from campaigns.gallery.exhibits import EXHIBITS
from campaigns.gallery.reports import PLOTLY, make


pytestmark = pytest.mark.timeout(900)  # 20 s on an idle machine

SHORT = (
    *("overflow in backward only", "NaN in every tenth batch", "dead scale"),
    *("clipped while scaled", "scaler not restored", "killed"),
    *("typical", "layer norm", "calmed", "resumed"),
)
"""Faulty and healthy patients, spread over the rules."""


def test_the_sick_are_found_and_the_healthy_are_left_alone(tmp_path: Path) -> None:
    """In real trainings on a real server each fault is the first finding, and no healthy run gets a warning."""
    verdicts = Session(tmp_path / "clinic").run([find(name) for name in SHORT])
    wrong = [each for each in verdicts if not each.right]
    assert wrong == []


def test_cures_and_recommendations(tmp_path: Path) -> None:
    """Recommended code cures, a wrong change does not, and page, report and doctor agree on the recommendation."""
    names = "overflow in backward only", "typical", "growth too eager", "scaled twice"
    patients = [find(name) for name in (*names, "activations sampled")]
    session = Session(tmp_path / "clinic")
    verdicts = session.cure(patients, session.run(patients))
    advised = session.recommended(patients)
    sick = patients[names.index("growth too eager")]
    found = verdicts[names.index("growth too eager")]
    wrong = msgspec.structs.replace(found, fix=found.fix.replace("2000", "4"))
    (eager,) = session.cure([sick], [wrong])
    assert eager.cure is not None
    assert eager.cure.left == ("sawtooth",)
    assert not report.enough(report.Examined([eager], [], "", 0.0))
    assert [each for each in verdicts if not each.right] == []
    assert report.enough(report.Examined(verdicts, [], "", 0.0))
    with pytest.raises(ValueError, match="no place"):
        places_of("optimizer.step()")

    assert [name for name, each in advised.items() if not each.agree] == []
    assert [name for name, each in advised.items() if not each.page] == ["typical"]
    assert "growth_interval=2000" in advised["growth too eager"].page[0]
    assert not Recommendations(("a", "b"), ("a", "b"), ("a", "b")).agree
    assert not Recommendations(("a",), ("a",), ()).agree

    lines = report.tables(report.Examined(verdicts, [], "", 0.0)).splitlines()
    row = next(row for row in lines if row.startswith("| overflow in backward only "))
    assert "look at: `Compute module mine in fp32" in row


def test_the_final_loss_is_that_of_usual_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not depend on whether the last update, which has the fault, was trained or left out as skipped."""
    monkeypatch.setenv("AMPMON_MODE", "disabled")
    plan = Plan(updates=40, strength=1e4, init_scale=1.0)
    trained, left_out = (WideFeature(plan, tmp_path) for _ in range(2))
    trained.train()
    left_out.train(skipped={39})
    assert trained.final_loss() < 10
    assert left_out.final_loss() < 10


def test_there_are_enough_patients() -> None:
    """At least 25 patients are faulty and 15 healthy, and every name is unique."""
    assert len(SICK) >= 25
    assert len(HEALTHY) >= 15
    assert len({patient.name for patient in PATIENTS}) == len(PATIENTS)


def test_a_finding_is_right_only_first_and_in_its_layer() -> None:
    """A finding counts only if it comes first and names the layer; a healthy run may only have notices."""
    patient = find("overflow in backward only")
    finding: dict[str, object] = {
        "severity": "warning",
        "title": "",
        "parameters": ["mine"],
        "rule": patient.rules[0],
    }
    other = {**finding, "rule": "skip_rate"}
    elsewhere = {**finding, "parameters": ["head", "mine"]}

    def right(*findings: Mapping[str, object]) -> bool:
        return verdict(patient, "", {"findings": findings}).right

    assert right(finding, other)
    assert not right(other, finding)
    assert not right(elsewhere)
    assert not right()
    healthy = find("typical")
    assert not verdict(healthy, "", {"findings": [finding]}).right
    assert verdict(healthy, "", {"findings": [{**finding, "severity": "notice"}]}).right


def test_a_seed_draws_the_same_patients_and_another_others() -> None:
    """Half of the random patients are healthy; the seed alone determines them, and each is found by its name."""
    patients = drawn.draw("a seed", 60)
    assert sum(not patient.sick for patient in patients) == 30
    assert [find(patient.name).plan for patient in patients] == [each.plan for each in patients]
    others = drawn.draw("another", 60)
    assert [each.plan for each in others] != [each.plan for each in patients]


def test_one_loss_that_is_too_high_is_weighed_with_other_seeds() -> None:
    """A cure's loss counts as the geometric mean over its seeds, but a loss that is not finite never passes."""
    assert Cure(loss=1.05, twin=1.0).worked
    assert not Cure(loss=1.06, twin=1.0).worked
    assert Cure(loss=1.06, twin=1.0, again=((1.02, 1.0), (2.1, 2.0))).worked
    assert not Cure(loss=1.06, twin=1.0, again=((1.05, 1.0), (2.1, 2.0))).worked
    assert not Cure(loss=1.06, twin=1.0, again=((math.nan, 1.0),)).worked
    assert not Cure(loss=1.0, twin=1.0, left=("skip_rate",)).worked
    assert not Cure().worked
    assert Cure(loss=3.0).worked


def test_the_table_says_what_was_missed() -> None:
    """The confusion table counts a missed fault and a false alarm, and the clinic then fails."""
    missed, alarmed = (
        Verdict(patient="", about="", run_id="", rules=rules, first=first, severity="warning")
        for rules, first in ((("dead_scale",), "skip_rate"), ((), "bf16"))
    )
    table = report.confusion([missed, alarmed])
    assert "| dead_scale | 1 | 0 | skip_rate (warning) 1 |" in table
    assert "| healthy | 1 | 0 | bf16 (warning) 1 |" in table
    assert not report.enough(report.Examined([], [missed, alarmed], "", 0.0))


def test_a_report_of_the_gallery_opens_from_its_folder(tmp_path: Path) -> None:
    """A report opened from its folder draws its charts, logs nothing to the console, and links back."""
    (exhibit,) = (each for each in EXHIBITS if each.patient == "growth too eager")
    make([exhibit], Session(tmp_path / "clinic"), tmp_path, "0")
    shutil.copyfile(plotly_script(), tmp_path / PLOTLY)
    said: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.goto((tmp_path / f"{exhibit.name}.html").as_uri())
        expect(page.locator("[data-figure=scale] .plot-container")).to_be_visible()
        expect(page.locator(".finding").first).to_contain_text("growth_interval=3")
        hrefs = page.locator("main > p a").evaluate_all("all => all.map(one => one.pathname)")
    assert said == []
    assert [Path(each).name for each in hrefs] == ["gallery.html", "sawtooth.html"]
