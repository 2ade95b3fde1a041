"""Finds a scale that should have grown and has not."""

from __future__ import annotations

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import RESTART, each_scaler
from ampmon_server.analysis.diagnosis.underflow import is_past_growth
from ampmon_server.analysis.diagnosis.updates import CAPPED, is_set_by_hand, newest_scale
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, power_of_two


EXPLANATION = (
    "After growth_interval steps without a skip the scale doubles, or grows by growth_factor. Here it did not, though "
    "nothing was skipped: something resets its growth tracker. Creating the scaler again, loading its state "
    "repeatedly, or passing new_scale to update() does that. Small gradients are flushed to zero for longer than "
    "necessary."
)
FIX = (
    "# Make it once, before the loop, and restore its state once, when you resume. Let only update() set the scale:\n"
    'scaler = ampmon.GradScaler()\nscaler.load_state_dict(checkpoint["scaler"])\n'
    "scaler.update()  # without new_scale"
)
PAST = (
    "torch grows the scale when its growth tracker, which counts steps without a skip, reaches growth_interval. Here "
    "the tracker was already past it when set_growth_interval() shortened it: now only a skip, which resets the "
    "tracker, lets it grow again. Small gradients are flushed to zero for longer than necessary."
)


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Judge by updates at the same scale without a skip, or by a growth tracker that is past its interval."""
    policy = scaler.policy
    scale, interval = newest_scale(scaler), policy.growth_interval
    if not interval or not policy.growth_factor > 1:
        return None
    still = _still(scaler.updates)
    # A scale at its cap is what `scale_cap` finds.
    if is_set_by_hand(scaler.recent) or still["moves"][:, CAPPED].any():
        return None
    tracker = scaler.growth_tracker or 0
    past, quiet = is_past_growth(scaler), int(still["n"].sum())
    if past:
        quiet = max(quiet, tracker)
    # Past the interval by less than `LATE`, a longer one may be set but not reported yet.
    elif tracker >= interval or quiet < thresholds.stuck_intervals * interval:
        return None
    why = (
        f"its growth tracker is past growth_interval = {count(interval)}, so it cannot grow"
        if past
        else f"it should grow every {count(interval)}"
    )
    return Finding(
        rule="stuck_scale",
        severity="warning",
        title=f"The scale has stayed at {power_of_two(scale)} for {count(quiet)} steps without a skip: {why}",
        explanation=PAST if past else EXPLANATION,
        fix=RESTART.format(growth_interval=interval) if past else FIX,
        first_step=int((still if len(still) else scaler.recent)["first"][0]),
        last_step=int(scaler.recent["last"][-1]),
        evidence={"quiet": quiet, "growth_interval": interval, "scale": scale},
        figure="scale",
    )


def _still(cells: Cells) -> Cells:
    """The newest cells that all have the same scale and no skip."""
    scale = cells["scale_last"][-1:]
    moving = (cells["scale_min"] != scale) | (cells["scale_max"] != scale) | (cells["skipped"] > 0)
    places = np.flatnonzero(moving)
    return cells[places[-1] + 1 :] if len(places) else cells
