"""A scale that should have grown and has not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampmon.wire import Finding
from ampmon_server.case import ScalerCase
from ampmon_server.cells.merging import Cells
from ampmon_server.diagnosis.rules.each import each_scaler
from ampmon_server.diagnosis.updates import CAPPED, is_set_by_hand, newest_scale
from ampmon_server.thresholds import Thresholds
from ampmon_server.words import count, power_of_two


EXPLANATION = (
    "After growth_interval updates without a skip the scale doubles, or grows by growth_factor. Here it did not, "
    "though nothing was skipped: something sets its growth tracker back, as making the scaler anew, loading its state "
    "over and over, or giving update() a new_scale does. Small gradients are flushed to zero for longer than they "
    "need be."
)
FIX = (
    "# Make it once, before the loop, and restore its state once, when you resume:\n"
    'scaler = ampmon.GradScaler()\nscaler.load_state_dict(checkpoint["scaler"])'
)


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Iterator[Finding]:
    """Counted while every update has had the same scale and none was skipped."""
    policy = scaler.policy
    scale = newest_scale(scaler)
    if scale is None or not policy.growth_interval or not policy.growth_factor > 1:
        return
    still = _still(scaler.updates)
    quiet = int(still["n"].sum())
    meant = (
        is_set_by_hand(scaler.recent) or still["moves"][:, CAPPED].any() or _counts_further(scaler)
    )
    if meant or quiet < thresholds.stuck_intervals * policy.growth_interval:
        return
    yield Finding(
        rule="stuck_scale",
        severity="warning",
        title=f"The scale stands at {power_of_two(scale)} for {count(quiet)} updates without a skip: it should grow "
        f"every {count(policy.growth_interval)}",
        explanation=EXPLANATION,
        fix=FIX,
        scaler=scaler.name,
        first_step=int(still["first"][0]),
        last_step=int(still["last"][-1]),
        evidence={"quiet": quiet, "growth_interval": policy.growth_interval, "scale": scale},
        figure="scale",
    )


def _counts_further(scaler: ScalerCase) -> bool:
    """Whether it waits for longer than when it was made: by set_growth_interval(), and nothing holds it back."""
    tracker = scaler.growth_tracker
    return tracker is not None and tracker >= scaler.policy.growth_interval


def _still(cells: Cells) -> Cells:
    """The newest cells that all have the one scale, and no skip."""
    scale = cells["scale_last"][-1:]
    moving = (cells["scale_min"] != scale) | (cells["scale_max"] != scale) | (cells["skipped"] > 0)
    places = np.flatnonzero(moving)
    return cells[places[-1] + 1 :] if len(places) else cells
