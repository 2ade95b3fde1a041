"""Finds a scale that cannot grow any more."""

from __future__ import annotations

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.analysis.diagnosis.updates import CAPPED, newest_scale
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import plural, power_of_two


EXPLANATION = (
    "The scale has grown as far as it can without a single overflow. The usual reason is that the gradients are zero: "
    "the loss has become 0, it does not depend on the parameters, or detach() cut the graph."
)
FIX = (
    "# Is there anything to train?\n"
    "print(loss.item(), max(p.grad.abs().max().item() for p in model.parameters() if p.grad is not None))"
)


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a notice if the newest growth that was due had no effect."""
    capped = scaler.updates[scaler.updates["moves"][:, CAPPED] > 0]
    scale = newest_scale(scaler)
    if not len(capped) or scale < capped["move_after"][-1, CAPPED]:
        return None
    times = int(capped["moves"][:, CAPPED].sum())
    return Finding(
        rule="scale_cap",
        severity="notice",
        title=f"The scale is at its cap, {power_of_two(scale)}: it was due to grow {plural(times, 'time')} and did not",
        explanation=EXPLANATION,
        fix=FIX,
        first_step=int(capped["move_first"][0, CAPPED]),
        last_step=int(scaler.recent["last"][-1]),
        evidence={"scale": scale, "capped": times},
        figure="scale",
    )
