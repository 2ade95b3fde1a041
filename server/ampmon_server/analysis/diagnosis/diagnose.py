"""Runs every rule, removes symptoms of other findings, sorts the worst first, and adds the recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from ampmon.system.plain import plain_finding
from ampmon.wire import Finding, Severity
from ampmon_server.analysis.diagnosis.explaining import explained
from ampmon_server.analysis.diagnosis.measured import measured
from ampmon_server.analysis.diagnosis.recommending import recommend
from ampmon_server.analysis.diagnosis.rules import RULES
from ampmon_server.model.case import Case
from ampmon_server.model.thresholds import RANKS, Thresholds


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A run's findings, the worst first, and none if it is healthy. ``failed`` are the rules that raised, by name."""

    findings: tuple[Finding, ...]
    failed: Mapping[str, Exception] = field(default_factory=dict)

    @property
    def severity(self) -> Severity | None:
        """The severity of the worst finding, None if there is none."""
        return self.findings[0].severity if self.findings else None

    @property
    def verdict(self) -> str:
        """The title of the worst finding, or "healthy"."""
        return self.findings[0].title if self.findings else "healthy"


def diagnose(case: Case, thresholds: Thresholds) -> Diagnosis:
    """Diagnose a run. Findings of equal severity are in the order of `rules.RULES`.

    None stops a start that has not made an update, because they are about the start before it. An ended run whose rows
    are pruned keeps its findings.
    """
    if case.findings is not None:
        return Diagnosis(case.findings)
    failed: dict[str, Exception] = {}
    causes = explained(list(_found(case, thresholds, failed)))
    found = [plain_finding(measured(each, case)) for each in causes]
    found.sort(key=lambda each: RANKS[each.severity])
    try:
        found = list(recommend(found, case.scalers))
    except Exception as error:
        failed["recommending"] = error
    if not case.begun:
        found = [msgspec.structs.replace(each, stop=False) for each in found]
    return Diagnosis(tuple(found), failed)


def _found(case: Case, thresholds: Thresholds, failed: dict[str, Exception]) -> Iterator[Finding]:
    for rule in RULES:
        try:
            yield from map(plain_finding, rule(case, thresholds))
        except Exception as error:  # a failed rule must not hide what others found
            failed[rule.__module__.rpartition(".")[2]] = error
