"""The clinic at its smallest: two patients, one of them from the gallery."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from campaigns.clinic.drawn import find
from campaigns.clinic.report import Examined, enough, tables
from campaigns.clinic.session import Session
from campaigns.clinic.verdict import verdict
from campaigns.gallery.exhibits import EXHIBITS
from campaigns.gallery.reports import make


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session, which keeps trained patients."""
    return Session(tmp_path_factory.mktemp("clinic"))


def test_patients_are_judged_and_cured(session: Session) -> None:
    """A sick training is diagnosed and cured by one change, and swapped verdicts are wrong."""
    sick, healthy = find("growth too eager"), find("typical")
    patients = [sick, healthy]
    verdicts = session.cure(patients, session.run(patients))
    assert [each for each in verdicts if not each.right] == []
    assert enough(Examined(verdicts, [], "", 0.0))

    lines = tables(Examined(verdicts, [], "", 0.0)).splitlines()
    row = next(row for row in lines if row.startswith(f"| {sick.name} "))
    assert row.endswith("| yes |")

    found = {"rule": verdicts[0].first, "severity": "warning", "title": "", "parameters": []}
    swapped = [verdict(sick, "", {"findings": []}), verdict(healthy, "", {"findings": [found]})]
    assert [each for each in swapped if each.right] == []
    assert not enough(Examined(swapped, [], "", 0.0))


@pytest.mark.rare
def test_a_report_of_the_gallery_is_written_with_its_pictures(
    session: Session, tmp_path: Path
) -> None:
    """A report links back and has pictures in both themes; it is not written if its first finding is another one."""
    (exhibit,) = (each for each in EXHIBITS if each.patient == "growth too eager")
    with pytest.raises(ValueError, match="the first finding is sawtooth, not skip_rate"):
        make([replace(exhibit, rule="skip_rate")], session, tmp_path, "0")
    assert not any(tmp_path.iterdir())

    make([exhibit], session, tmp_path, "0")
    report = (tmp_path / f"{exhibit.name}.html").read_text()
    assert all(f'href="../{each}.html"' in report for each in ("gallery", "findings/sawtooth"))
    light, dark = ((tmp_path / f"{exhibit.name}{end}.png").read_bytes() for end in ("", "-dark"))
    assert light != dark
