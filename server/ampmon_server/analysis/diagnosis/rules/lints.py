"""Reports lints that ampmon found in the training process, in the words shown there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ampmon.system.plain import RULE
from ampmon.wire import Finding
from ampmon_server.analysis.policy.languages import in_settings_of, on_device_of
from ampmon_server.model.case import Case, RunEvent
from ampmon_server.model.thresholds import RANKS, Thresholds


KIND = "lint"
SETTINGS = frozenset({"clip_before_unscale", "moved_outside_training", "scaler_under_bf16"})
"""Lints whose fix is a setting if a framework makes the scaler."""
STOPPING = frozenset({"fused_sgd", "poisoned_state"})
"""The only lints that may stop a run: an event may hold any rule, and `should_stop` ends a training."""


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield each lint of the run's newest start once, the oldest first, because it causes those that follow."""
    seen = set()
    for event in case.of_newest_start(KIND):
        key = str(event.detail.get("rule")), event.scaler
        if key not in seen:
            seen.add(key)
            for finding in _finding(event):
                yield _in_settings(finding, case)


def _in_settings(finding: Finding, case: Case) -> Finding:
    policies = {scaler.name: scaler.policy for scaler in case.scalers}
    if finding.scaler not in policies:
        return finding
    write = in_settings_of if finding.rule in SETTINGS else on_device_of
    fix = write(policies[finding.scaler], finding.fix)
    return msgspec.structs.replace(finding, fix=fix)


def _finding(event: RunEvent) -> Iterator[Finding]:
    """Nothing if the event is not a valid lint, because events may hold anything."""
    detail: Mapping[str, Any] = event.detail
    words = {name: detail.get(name, "") for name in ("rule", "title", "explanation", "fix")}
    severity = next((each for each in RANKS if each == detail.get("severity")), None)
    parameters = detail.get("parameters") or ()
    plain = all(isinstance(each, str) for each in words.values())
    listed = isinstance(parameters, (list, tuple)) and all(isinstance(p, str) for p in parameters)
    if severity and plain and listed and RULE.fullmatch(words["rule"]):
        yield Finding(
            **words,
            severity=severity,
            scaler=event.scaler,
            first_step=event.step,
            parameters=tuple(parameters),
            stop=detail.get("stop") is True and words["rule"] in STOPPING,
        )
