"""A scale that should have grown and has not."""

from __future__ import annotations

from collections.abc import Iterator

from ampmon.wire import Finding
from ampmon_server.case import ScalerCase
from ampmon_server.diagnosis.rules.each import each_scaler
from ampmon_server.diagnosis.updates import newest_scale
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
    """Counted from the last skip or move of the scale."""
    policy, cells = scaler.policy, scaler.updates
    scale = newest_scale(scaler)
    if not len(cells) or not policy.growth_interval or not policy.growth_factor > 1:
        return
    moved = max(int(cells["skip_last"].max()), int(cells["move_last"].max()))
    still = cells[cells["first"] > moved]
    quiet = int(still["n"].sum())
    if scale is None or quiet < thresholds.stuck_intervals * policy.growth_interval:
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
