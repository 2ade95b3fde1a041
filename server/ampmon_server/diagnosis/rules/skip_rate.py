"""Updates that are lost one here, one there: their share of the newest updates, calibration left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampmon import estimates
from ampmon.wire import Finding
from ampmon_server.case import Policy, ScalerCase
from ampmon_server.diagnosis.calibration import calibrated_from
from ampmon_server.diagnosis.rules.each import each_scaler
from ampmon_server.diagnosis.updates import since
from ampmon_server.thresholds import Thresholds
from ampmon_server.words import count, percent


EXPLANATION = (
    "A skipped update leaves the weights as they were: the batch was computed for nothing. torch tries a larger scale "
    "after every growth_interval updates, which costs one skip in a few thousand; more than that means that the "
    "gradients' size varies more than the scale can follow."
)
LESS_OFTEN = (
    "scaler = ampmon.GradScaler(growth_interval={growth_interval})  # try a larger scale less often"
)
LOOK = (
    "# Larger scales are hardly ever tried as it is. See which module is the first that is not finite:\n"
    "scaler = ampmon.GradScaler(model=model, monitor=ampmon.Config(activations=1))"
)
LEAST = 3
"""Fewer skips than this say nothing of the rate of a window that is not full."""
GROWTH_INTERVAL_MAX = 1_000_000


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Iterator[Finding]:
    """Of a window that is not full, what the share is at least."""
    window = since(scaler.recent[-thresholds.skip_window :], calibrated_from(scaler))
    if not len(window):
        return
    skipped, updates = int(window["skipped"].sum()), int(window["n"].sum())
    severity = thresholds.skip_rate.severity(at_least(skipped, updates, thresholds.skip_window))
    if severity is None or skipped < LEAST - (updates >= thresholds.skip_window):
        return
    yield Finding(
        rule="skip_rate",
        severity=severity,
        title=f"{count(skipped)} of the last {count(updates)} updates were skipped "
        f"({percent(skipped / updates)})",
        explanation=EXPLANATION,
        fix=_fix(scaler.policy),
        scaler=scaler.name,
        first_step=int(window["first"][0]),
        last_step=int(window["last"][-1]),
        evidence={"skipped": skipped, "updates": updates},
        figure="skips",
    )


def _fix(policy: Policy) -> str:
    """Fewer tries, where there are some."""
    interval = policy.growth_interval
    if not policy.growth_factor > 1 or not 0 < interval < GROWTH_INTERVAL_MAX:
        return LOOK
    return LESS_OFTEN.format(growth_interval=min(2 * interval, GROWTH_INTERVAL_MAX))


def at_least(skipped: int, updates: int, window: int) -> float:
    """The share of skipped updates; of less than a window of them, the low end of its 95 % interval."""
    share = skipped / updates
    if updates >= window:
        return share
    each = np.array([1 / updates])
    low, _ = estimates.interval(np.array([share]), share * (1 - share) * each, each)
    return float(low[0])
