"""The clinic at its smallest: one sick and one healthy patient. `make clinic` examines all of them."""

from __future__ import annotations

from pathlib import Path

from campaigns.clinic.drawn import find
from campaigns.clinic.recommended import Recommendations
from campaigns.clinic.report import Examined, enough
from campaigns.clinic.session import Session
from campaigns.clinic.verdict import verdict


RECOMMENDED = (
    *("range too wide", "growth too eager", "high first scale", "activations sampled"),
    *("fp16 without a scaler", "typical"),
)
"""With several fixes, a setting that is replayed, a fix of a notice, no update, and nothing to recommend."""


def test_page_report_and_doctor_recommend_the_same_one_thing(tmp_path: Path) -> None:
    """For real trainings, sick and healthy, all three recommend at most one change, and the same."""
    session, patients = Session(tmp_path / "clinic"), [find(name) for name in RECOMMENDED]
    session.run(patients)
    found = session.recommended(patients)
    assert [name for name, each in found.items() if not each.agree] == []
    assert [name for name, each in found.items() if not each.page] == ["typical"]
    assert "growth_interval=2000" in found["growth too eager"].page[0]
    assert not Recommendations(("a", "b"), ("a", "b"), ("a", "b")).agree
    assert not Recommendations(("a",), ("a",), ()).agree


def test_the_sick_is_found_the_healthy_left_alone_and_a_wrong_verdict_told(tmp_path: Path) -> None:
    """Real trainings are diagnosed rightly by a real server; with the diagnoses swapped both verdicts are wrong."""
    sick, healthy = find("overflow in backward only"), find("typical")
    verdicts = Session(tmp_path / "clinic").run([sick, healthy])
    assert [each for each in verdicts if not each.right] == []
    assert enough(Examined(verdicts, [], "", 0.0))

    found = {"rule": verdicts[0].first, "severity": "warning", "title": "", "parameters": ["head"]}
    swapped = [
        verdict(sick, "", {"findings": []}),
        verdict(sick, "", {"findings": [found]}),  # in another layer
        verdict(healthy, "", {"findings": [found]}),
    ]
    assert [each for each in swapped if each.right] == []
    assert not enough(Examined(swapped, [], "", 0.0))
