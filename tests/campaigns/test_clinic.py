"""The clinic at its smallest: four patients. `make clinic` examines all of them."""

from __future__ import annotations

from pathlib import Path

from campaigns.clinic.drawn import find
from campaigns.clinic.recommended import Recommendations
from campaigns.clinic.report import Examined, enough
from campaigns.clinic.session import Session
from campaigns.clinic.verdict import verdict


def test_patients_are_judged_and_page_report_and_doctor_recommend_the_same(tmp_path: Path) -> None:
    """Real trainings are diagnosed rightly and given the same one change everywhere; a wrong verdict is told."""
    sick, healthy = find("overflow in backward only"), find("typical")
    patients = [sick, healthy, find("growth too eager"), find("activations sampled")]
    session = Session(tmp_path / "clinic")
    verdicts = session.run(patients)
    assert [each for each in verdicts if not each.right] == []
    assert enough(Examined(verdicts, [], "", 0.0))

    advised = session.recommended(patients)
    assert [name for name, each in advised.items() if not each.agree] == []
    assert [name for name, each in advised.items() if not each.page] == ["typical"]
    assert "growth_interval=2000" in advised["growth too eager"].page[0]
    assert not Recommendations(("a", "b"), ("a", "b"), ("a", "b")).agree
    assert not Recommendations(("a",), ("a",), ()).agree

    found = {"rule": verdicts[0].first, "severity": "warning", "title": "", "parameters": ["head"]}
    swapped = [
        verdict(sick, "", {"findings": []}),
        verdict(sick, "", {"findings": [found]}),  # in another layer
        verdict(healthy, "", {"findings": [found]}),
    ]
    assert [each for each in swapped if each.right] == []
    assert not enough(Examined(swapped, [], "", 0.0))
