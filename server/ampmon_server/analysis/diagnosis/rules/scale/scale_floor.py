"""Finds a scale at which gradients overflow, but that skips do not lower: it is at a floor or set by hand."""

from __future__ import annotations

import math

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.analysis.diagnosis.updates import held_scale, is_set_by_hand
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.scale_policy import INIT_SCALE
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, in_code, power_of_two


EXPLANATION = (
    "After an overflow the scale should fall, so that the next batch fits. Here it does not fall{why}, so batches "
    "that overflow at this scale are skipped, and their computation is wasted."
)
LEAST = (
    "The scale is at its minimum, and batches overflow even there, where the loss is not scaled: no loss scale helps. "
    "Look for inf or NaN in the loss and the data, and for a learning rate that is too high."
)
BY_HAND = ", because a fixed scale is passed to update()"
FLOOR = ", because this scaler has a minimum"
RAISED = ", because the script or a wrapper sets it back"
FIX = (
    "scaler = ampmon.GradScaler(init_scale={init_scale})  # torch's own adjusts itself\n"
    "scaler.update()  # without new_scale"
)
HELD = 3
"""This many skips at the same scale make a floor."""


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Judge the newest updates, including calibration, because a floor is there from the beginning."""
    window = scaler.recent[-thresholds.skip_window :]
    if len(window) < 2:
        return None
    # Not the newest: whether the script puts the scale back shows only at the next update.
    held = window[:-1][held_scale(window, scaler.policy)[:-1]]
    held = held[held["scale_first"] <= window["scale_first"][-1]]
    if int(held["n"].sum()) < HELD:
        return None
    floor = float(held["scale_first"][-1])
    by_hand = is_set_by_hand(window)
    unscaled = floor <= 1 and floor <= scaler.policy.min_scale
    begin = max(floor, 1.0) if math.isfinite(floor) else INIT_SCALE
    why = BY_HAND if by_hand else FLOOR if scaler.policy.min_scale > 0 else RAISED
    skips = window[window["skipped"] > 0] if by_hand else held
    skipped, at_it = int(skips["skipped"].sum()), (skips["scale_first"] == floor).all()
    return Finding(
        rule="scale_floor",
        severity="warning",
        title=f"The scale does not fall below {power_of_two(floor)}, and {count(skipped)} of the last "
        f"{count(int(window['n'].sum()))} steps were skipped{' at it' if at_it else ''}",
        explanation=LEAST if unscaled else EXPLANATION.format(why=why),
        fix="" if unscaled else FIX.format(init_scale=in_code(begin)),
        first_step=int(held["first"][0]),
        last_step=int(held["last"][-1]),
        evidence={"scale": floor, "skipped": skipped},
        figure="scale",
    )
