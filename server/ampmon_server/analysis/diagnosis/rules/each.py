"""Turns a rule for a single scaler into a rule for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps

import msgspec

from ampmon.wire import Finding
from ampmon_server.analysis.policy.languages import in_settings_of, settings_in
from ampmon_server.model.case import Case, ScalerCase
from ampmon_server.model.thresholds import Thresholds


def each_scaler(
    rule: Callable[[ScalerCase, Thresholds], Finding | None],
) -> Callable[[Case, Thresholds], Iterator[Finding]]:
    """Turn a rule for a scaler into one for a run, over all scalers that have updates."""

    @wraps(rule)  # the module names a rule that fails
    def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
        for scaler in case.scalers:
            if len(scaler.recent) and (finding := rule(scaler, thresholds)):
                yield fitted(finding, scaler)

    return examine


def fitted(finding: Finding, scaler: ScalerCase) -> Finding:
    """Return the finding as one of this scaler: its fix is rewritten for the script, and has its settings beside it."""
    fix = in_settings_of(scaler.policy, finding.fix)
    setting = settings_in(finding.fix)
    return msgspec.structs.replace(finding, scaler=scaler.name, fix=fix, setting=setting)
