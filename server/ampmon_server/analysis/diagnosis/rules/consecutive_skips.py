"""Finds many skipped updates in a row: lowering the scale does not help them."""

from __future__ import annotations

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.explaining import OUTLIER
from ampmon_server.analysis.diagnosis.outliers import HEAVY, outlier_ratio
from ampmon_server.analysis.diagnosis.rules.parts import LIMIT, LOOK, each_scaler
from ampmon_server.analysis.diagnosis.updates import (
    Streak,
    calibrated_from,
    skips_to_death,
    streaks,
)
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.names import training_loss
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, magnitude_of, power_of_two, steps


EXPLANATION = (
    "A skip multiplies the scale by backoff_factor, usually 0.5, so that the next batch fits: after an ordinary "
    "overflow one or two skips are enough. Many in a row mean that the scale is not the problem: the loss or a layer "
    "produces inf or NaN at any scale, the weights hold NaN, or gradients are never cleared.{death}"
)
DEATH = " {left} more such skips and the scale is dead."
LOSS = " Here the logged {name} was {ratio} times the one before, so these batches are the cause."


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Judge the longest streak of the newest updates, preferring those with an outlier in the loss.

    Calibration counts only while it continues below a scale of 1.
    """
    searching = calibrated_from(scaler)
    found = [
        each
        for each in streaks(scaler.recent)
        if each.first >= searching or (each.ongoing and not each.after >= 1)
    ]
    if not found:
        return None
    levels, name = thresholds.consecutive_skips, training_loss(scaler.logged)
    ratios = {
        each: ratio
        for each in found
        if name and levels.severity(each.updates) and not each.ongoing
        if (ratio := outlier_ratio(scaler.logged[name], each.first, each.last))
    }
    longest = max(ratios or found, key=lambda each: each.updates)
    severity = levels.severity(longest.updates)
    if severity is None:
        return None
    ratio = ratios.get(longest)
    left = skips_to_death(longest.after, scaler.policy) if longest.ongoing else None
    return Finding(
        rule="consecutive_skips",
        severity=severity,
        title=_title(longest),
        explanation=EXPLANATION.format(death=DEATH.format(left=left) if left else "")
        + (LOSS.format(name=name, ratio=magnitude_of(ratio)) if ratio else ""),
        fix=LIMIT.format(most=HEAVY) if ratio else LOOK,
        first_step=longest.first,
        last_step=longest.last,
        evidence={
            "skipped": longest.updates,
            "scale_after": longest.after,
            **({OUTLIER: ratio} if ratio else {}),
        },
        figure="skips",
        stop=longest.ongoing and severity == "critical",
    )


def _title(streak: Streak) -> str:
    if streak.ongoing:
        return (
            f"The last {count(streak.updates)} steps were all skipped; the scale fell to "
            f"{power_of_two(streak.after)}"
        )
    where = steps(streak.first, streak.last)
    return f"{count(streak.updates)} steps in a row were skipped ({where})"
