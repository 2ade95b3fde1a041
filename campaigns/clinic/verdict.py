"""Compares a patient's diagnosis with its known fault."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from campaigns.clinic.patient import Patient


NEAR = 1.05
"""The largest ratio of a cured training's loss to its healthy twin's."""
SEEDS = 5
"""One final loss is noisy: if it alone is too high, this many seeds decide, including the first."""


class Cure(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the run with the recommended code.

    ``left`` are the rules that still find the fault, or find a warning or worse. ``twin`` is the healthy twin's loss,
    None if there is no twin; ``again`` has both losses of each further seed. Without a ``run_id`` the code ended the
    training at once.
    """

    run_id: str = ""
    left: tuple[str, ...] = ()
    loss: float | None = None
    twin: float | None = None
    again: tuple[tuple[float, float], ...] = ()

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """Its loss and its twin's for each seed: NaN without a loss, infinite without a twin."""
        loss = math.nan if self.loss is None else self.loss
        return ((loss, math.inf if self.twin is None else self.twin), *self.again)

    @property
    def finite(self) -> bool:
        return all(math.isfinite(loss) for loss, _ in self.pairs)

    @property
    def near(self) -> bool:
        """Whether the geometric mean of the loss ratios is at most `NEAR`."""
        losses, twins = zip(*self.pairs, strict=True)
        return math.prod(losses) <= NEAR ** len(losses) * math.prod(twins)

    @property
    def worked(self) -> bool:
        return self.finite and not self.left and self.near


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The known ``rules`` and ``layer``, then the first finding, and the ``others``."""

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
    """The chart that shows each rule's finding."""
    fix: str = ""
    """The run's recommendation."""
    incurable: bool = False
    cure: Cure | None = None

    @property
    def sick(self) -> bool:
        return bool(self.rules)

    @property
    def found(self) -> bool:
        """Whether any finding names the fault."""
        return not {self.first, *(each.partition(" ")[0] for each in self.others)}.isdisjoint(
            self.rules
        )

    @property
    def layer_right(self) -> bool:
        """Whether the first finding is about the faulty layer, if there is one."""
        return self.layer is None or any(self.layer in name for name in self.parameters[:1])

    @property
    def cured(self) -> bool:
        """Whether its code cures the fault, or says what to look at if no code can. True for a healthy patient."""
        if self.incurable:
            return bool(self.fix)
        return not self.sick or (self.cure is not None and self.cure.worked)

    @property
    def right(self) -> bool:
        """Whether the first finding names the fault and its layer, or a healthy patient has no warning."""
        if not self.sick:
            return self.severity in (None, "notice")
        return self.first in self.rules and self.layer_right


def verdict(patient: Patient, run_id: str, diagnosis: dict[str, Any]) -> Verdict:
    """Make a verdict from the server's diagnosis of the run."""
    known: dict[str, Any] = {
        "patient": patient.name,
        "about": patient.about,
        "run_id": run_id,
        "rules": patient.rules,
        "layer": patient.layer,
        "incurable": patient.incurable,
    }
    if not diagnosis["findings"]:
        return Verdict(**known)
    first, *others = diagnosis["findings"]
    fixes = (each.get("fix") for each in diagnosis["findings"] if not each.get("second"))
    return Verdict(
        **known,
        first=first["rule"],
        severity=first["severity"],
        title=first["title"],
        parameters=tuple(first.get("parameters", ())),
        others=tuple(f"{each['rule']} ({each['severity']})" for each in others),
        fix=next(filter(None, fixes), ""),
        figures={each["rule"]: each.get("figure", "") for each in diagnosis["findings"]},
    )
