"""Finds a scale below 1, which makes gradients smaller although its purpose is to make them larger."""

from __future__ import annotations

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import BF16, each_scaler
from ampmon_server.analysis.diagnosis.updates import is_alive, newest_scale
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import plural, power_of_two


EXPLANATION = (
    "The scale multiplies the loss so that small gradients stay above what fp16 flushes to zero. Below 1 it does the "
    "opposite. It fell this far because gradients overflow even then: the loss is a large sum instead of a mean, the "
    "targets of a regression are large, a layer's gradient is far larger than all others, or inf and NaN come from a "
    "place that the scale does not affect."
)
FIX = (
    "# If the loss is a sum, take its mean. In a regression, divide the targets by their standard deviation.\n"
    f"# If gradients are large by nature, use bf16:\n{BF16}"
)


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a warning while the scale is that low."""
    scale = newest_scale(scaler)
    if not is_alive(scale) or scale >= thresholds.low_scale:
        return None
    last = int(scaler.recent["last"][-1])
    first = _first(scaler, thresholds.low_scale)
    return Finding(
        rule="low_scale",
        severity="warning",
        title=f"The scale is now {power_of_two(scale)}, and has been below {thresholds.low_scale:g} "
        f"for {plural(last - first + 1, 'step')}",
        explanation=EXPLANATION,
        fix=FIX,
        first_step=min(first, last),
        last_step=last,
        evidence={"scale": scale},
        figure="scale",
    )


def _first(scaler: ScalerCase, low: float) -> int:
    """The step after the last one known to leave the scale above ``low``. Up to a cell of the whole run too early."""
    held = (scaler.updates, scaler.first, scaler.recent)
    above = np.concatenate([cells["last"][cells["after_last"] >= low] for cells in held])
    return int(above.max()) + 1 if len(above) else int(scaler.updates["first"][0])
