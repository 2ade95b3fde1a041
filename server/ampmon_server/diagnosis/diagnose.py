"""Asks every rule, puts causes before symptoms and the worst first, and says the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from ampmon.wire import Finding, Severity
from ampmon_server.case import Case
from ampmon_server.diagnosis.explaining import explained
from ampmon_server.diagnosis.rules import RULES
from ampmon_server.diagnosis.severities import RANKS
from ampmon_server.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with a run, the worst first; nothing where it is healthy."""

    findings: tuple[Finding, ...]

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
    found = [finding for rule in RULES for finding in rule(case, thresholds)]
    return Diagnosis(tuple(sorted(explained(found), key=lambda each: RANKS[each.severity])))
