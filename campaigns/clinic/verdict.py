"""What the diagnosis says of a patient, against what is known of it."""

from __future__ import annotations

from typing import Any

import msgspec

from campaigns.clinic.patient import Patient


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """``rules`` and ``layer`` are what is known; then what was found first, and the ``others``."""

    patient: str
    about: str
    run_id: str
    rules: tuple[str, ...] = ()
    layer: str | None = None
    first: str | None = None
    severity: str | None = None
    title: str = ""
    parameters: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    figures: dict[str, str] = {}
    """Of each rule that found something, the chart that shows it."""

    @property
    def sick(self) -> bool:
        return bool(self.rules)

    @property
    def right(self) -> bool:
        """Named right as the first finding, with the layer; a healthy one without a warning."""
        if not self.sick:
            return self.severity in (None, "notice")
        return self.first in self.rules and (
            self.layer is None or any(self.layer in name for name in self.parameters[:1])
        )


def verdict(patient: Patient, run_id: str, diagnosis: dict[str, Any]) -> Verdict:
    """From the server's answer of what is wrong with the run."""
    known: dict[str, Any] = {
        "patient": patient.name,
        "about": patient.about,
        "run_id": run_id,
        "rules": patient.rules,
        "layer": patient.layer,
    }
    if not diagnosis["findings"]:
        return Verdict(**known)
    first, *others = diagnosis["findings"]
    return Verdict(
        **known,
        first=first["rule"],
        severity=first["severity"],
        title=first["title"],
        parameters=tuple(first.get("parameters", ())),
        others=tuple(f"{each['rule']} ({each['severity']})" for each in others),
        figures={each["rule"]: each.get("figure", "") for each in diagnosis["findings"]},
    )
