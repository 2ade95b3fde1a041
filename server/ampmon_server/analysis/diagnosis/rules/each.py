"""Rules that judge each scaler by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps

import msgspec

from ampmon.wire import Finding
from ampmon_server.analysis.policy.languages import in_settings_of, settings_in
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.case import Case, ScalePolicy, ScalerCase
from ampmon_server.model.thresholds import Thresholds


def each_scaler_with_logged(
    rule: Callable[[ScalerCase, Mapping[str, Cells], Thresholds], Iterator[Finding]],
) -> Callable[[Case, Thresholds], Iterator[Finding]]:
    """The rule of a scaler and of what was logged as one of a run: of all its scalers that have updates."""

    @wraps(rule)  # where one fails, its module says which
    def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
        for place, scaler in enumerate(case.scalers):
            if len(scaler.recent):
                # Logged values have the steps of the first scaler.
                for finding in rule(scaler, {} if place else case.logged, thresholds):
                    yield fitted(finding, scaler.policy)

    return examine


def each_scaler(
    rule: Callable[[ScalerCase, Thresholds], Iterator[Finding]],
) -> Callable[[Case, Thresholds], Iterator[Finding]]:
    """The rule of a scaler as one of a run: of all its scalers that have updates."""

    @wraps(rule)
    def without_logged(
        scaler: ScalerCase, _: Mapping[str, Cells], thresholds: Thresholds
    ) -> Iterator[Finding]:
        return rule(scaler, thresholds)

    return each_scaler_with_logged(without_logged)


def fitted(finding: Finding, policy: ScalePolicy) -> Finding:
    """The finding with its fix as the script writes it, and what that sets."""
    fix = in_settings_of(policy, finding.fix)
    return msgspec.structs.replace(finding, fix=fix, setting=settings_in(finding.fix))
