"""Finds a job that was resumed without its scaler's state."""

from __future__ import annotations

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, power_of_two


EXPLANATION = (
    "The checkpoint does not hold the scaler's state, or the script does not load it. The search for the right scale "
    "starts over: {costs}."
)
SKIPS = "each halving wastes a batch"
UNDERFLOW = "until the scale has grown back, fp16 loses small gradients that it held before"
FIX = (
    'checkpoint["scaler"] = scaler.state_dict()  # when you save\n'
    'scaler.load_state_dict(checkpoint["scaler"])  # when you resume'
)
AFTER = 100
"""This many updates after the start count as its effect."""


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Judge the newest such start."""
    newest = max(scaler.forgotten, key=lambda each: each.step, default=None)
    if newest is None or newest.lost is None:
        return None
    return Finding(
        rule="forgotten_state",
        severity="warning",
        title=f"Resumed at step {count(newest.step)} without the scaler's state: scale {power_of_two(newest.scale)} "
        f"instead of {power_of_two(newest.lost)}",
        explanation=EXPLANATION.format(costs=SKIPS if newest.scale > newest.lost else UNDERFLOW),
        fix=FIX,
        first_step=newest.step,
        last_step=max(newest.step, min(newest.step + AFTER, int(scaler.recent["last"][-1]))),
        evidence={"before": newest.lost, "scale": newest.scale, "times": len(scaler.forgotten)},
        figure="scale",
    )
