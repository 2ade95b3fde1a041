"""Updates that are lost one here, one there: their share of the newest updates, calibration left out."""

from __future__ import annotations

from collections.abc import Iterator

from ampmon.wire import Finding
from ampmon_server.case import Case, ScalerCase
from ampmon_server.diagnosis.calibration import calibrated_from
from ampmon_server.thresholds import Thresholds


EXPLANATION = (
    "A skipped update leaves the weights as they were: the batch was computed for nothing. torch tries a larger scale "
    "after every growth_interval updates, which costs one skip in a few thousand; more than that means that the "
    "gradients' size varies more than the scale can follow."
)
FIX = (
    "scaler = ampmon.GradScaler(growth_interval={growth_interval})  # try a larger scale less often"
)


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """Of each scaler."""
    for scaler in case.scalers:
        yield from _of(scaler, thresholds)


def _of(scaler: ScalerCase, thresholds: Thresholds) -> Iterator[Finding]:
    window = scaler.recent[-thresholds.skip_window :]
    window = window[window["first"] >= calibrated_from(scaler)]
    if not len(window):
        return
    skipped, updates = int(window["skipped"].sum()), len(window)
    severity = thresholds.skip_rate.severity(skipped / updates)
    if severity is None or skipped < 2:  # one alone says nothing of a rate
        return
    yield Finding(
        rule="skip_rate",
        severity=severity,
        title=f"{skipped} of the last {updates} updates were skipped ({skipped / updates:.1%})",
        explanation=EXPLANATION,
        fix=FIX.format(growth_interval=2 * scaler.policy.growth_interval),
        scaler=scaler.name,
        first_step=int(window["first"][0]),
        last_step=int(window["last"][-1]),
        evidence={"skipped": skipped, "updates": updates},
        figure="skips",
    )
