"""Asks every rule, puts causes before symptoms and the worst first, and says verdict and recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ampmon.system.plain import plain_finding
from ampmon.wire import Finding, Severity
from ampmon_server.analysis.diagnosis.explaining import explained
from ampmon_server.analysis.diagnosis.measured import measured
from ampmon_server.analysis.diagnosis.recommending import recommend
from ampmon_server.analysis.diagnosis.rules import RULES
from ampmon_server.model.case import Case
from ampmon_server.model.severities import RANKS
from ampmon_server.model.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a run, the worst first; nothing where it is healthy; and rules that ``failed``, by name."""

    findings: tuple[Finding, ...]
    failed: Mapping[str, Exception] = field(default_factory=dict)

    @property
    def severity(self) -> Severity | None:
        """That of the worst finding."""
        return self.findings[0].severity if self.findings else None

    @property
    def verdict(self) -> str:
        """ "healthy", or the worst finding in words."""
        return self.findings[0].title if self.findings else "healthy"


def diagnose(case: Case, thresholds: Thresholds) -> Diagnosis:
    """Judge a run. Of equal severity the finding of the rule that stands first in `rules.RULES` comes first."""
    failed: dict[str, Exception] = {}
    causes = explained(list(_found(case, thresholds, failed)))
    found = [plain_finding(measured(each, case)) for each in causes]
    found.sort(key=lambda each: RANKS[each.severity])
    try:
        found = list(recommend(found, case.scalers))
    except Exception as error:
        failed["recommending"] = error
    return Diagnosis(tuple(found), failed)


def _found(case: Case, thresholds: Thresholds, failed: dict[str, Exception]) -> Iterator[Finding]:
    for rule in RULES:
        try:
            yield from map(plain_finding, rule(case, thresholds))
        except Exception as error:  # what one rule cannot judge must not hide what others found
            failed[rule.__module__.rpartition(".")[2]] = error
