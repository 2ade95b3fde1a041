"""Finds a scale that few more skips in a row would make dead."""

from __future__ import annotations

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.analysis.diagnosis.updates import (
    is_set_by_hand,
    newest_scale,
    skips_to_death,
    streaks,
)
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import plural, power_of_two


EXPLANATION = (
    "Each skip makes the scale smaller. Here it has shrunk so far that {left} more would leave 1/scale infinite in "
    "fp32; from then on, unscaling turns every finite gradient into inf or NaN, which is written into the weights "
    "without another skip. No healthy training needs such a scale, and lowering it does not cure this overflow."
)
FIX = (
    "# Do not overwrite your last good checkpoint. See which module overflows first:\n"
    "scaler = ampmon.GradScaler(model=model, monitor=ampmon.Config(activations=1))"
)


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a critical finding if few skips are left, even if no updates are skipped at present."""
    scale = newest_scale(scaler)
    left = None if is_set_by_hand(scaler.recent) else skips_to_death(scale, scaler.policy)
    if left is None or left >= thresholds.skips_to_death:
        return None
    last = int(scaler.recent["last"][-1])
    newest = next(iter(streaks(scaler.recent)[-1:]), None)
    return Finding(
        rule="collapse_forecast",
        severity="critical",
        title=f"{plural(left, 'more skip')} until 1/scale is infinite and the weights are destroyed "
        f"(scale {power_of_two(scale)})",
        explanation=EXPLANATION.format(left=left),
        fix=FIX,
        first_step=newest.first if newest else last,
        last_step=last,
        evidence={"scale": scale, "skips_left": left},
        figure="scale",
        stop=newest is not None and newest.ongoing,
    )
