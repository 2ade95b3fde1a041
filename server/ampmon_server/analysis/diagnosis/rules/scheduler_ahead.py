"""Finds a learning-rate scheduler that steps although the optimizer did not."""

from __future__ import annotations

from collections.abc import Iterator

from ampmon.wire import Finding
from ampmon_server.analysis.policy.languages import in_settings_of
from ampmon_server.model.case import Case
from ampmon_server.model.thresholds import Thresholds, milder
from ampmon_server.model.words import percent, plural


EXPLANATION = (
    "A skipped step leaves the weights unchanged, but the scheduler changed the learning rate anyway. The schedule "
    "runs ahead of the training: warm-up is shorter, and decay starts earlier, than configured."
)
FIX = (
    "scale = scaler.get_scale()\n"
    "scaler.step(optimizer)\n"
    "scaler.update()\n"
    "if scaler.get_scale() >= scale:  # a smaller scale: it was skipped\n"
    "    scheduler.step()"
)
FEW = 5


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge by the share of all updates. Fewer than `FEW` are at most a notice."""
    if not case.scheduled or not case.updates:
        return
    share = case.scheduled / case.updates
    severity = thresholds.scheduler_ahead.severity(share)
    if severity is not None:
        yield Finding(
            rule="scheduler_ahead",
            severity=severity if case.scheduled >= FEW else milder(severity, "notice"),
            title=f"The scheduler is {plural(case.scheduled, 'step')} ahead of the optimizer "
            f"({percent(share)} of the steps)",
            explanation=EXPLANATION,
            fix=in_settings_of(case.scalers[0].policy, FIX) if case.scalers else FIX,
            evidence={"scheduled": case.scheduled, "updates": case.updates},
            figure="skips",
        )
