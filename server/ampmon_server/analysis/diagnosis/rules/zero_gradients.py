"""Finds gradients that are all zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.each import each_scaler
from ampmon_server.analysis.diagnosis.underflow import LEAST
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.scale_policy import INIT_SCALE
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, in_code, power_of_two


EXPLANATION = (
    "None of the newest {samples} samples has a value other than 0. Only weight decay and momentum still change the "
    "weights. {why}"
)
HIDDEN = (
    "The gradients were last above 0 at scale {before}, and the scale has grown to {scale} since. At such a scale fp16 "
    "gradients overflow, and the loop replaces inf and NaN by 0 before the scaler can see them, for example with "
    "`nan_to_num_`. So the scale never falls."
)
SMALL = "The scale is only {scale}: fp16 has rounded all values to 0, because the loss is too small for this scale."
OTHER = (
    "Either fp16 rounds all values to 0, because the loss is extremely small, or the loss does not depend on these "
    "parameters."
)
SHOW = (
    "scaler.scale(loss).backward()  # leave inf and NaN in the gradients: the scaler skips them\n"
    "scaler.step(optimizer)\nscaler.update()"
)
PAUSE = 50
"""Fewer updates without a gradient may be a pause, such as a time without a reward."""
LARGER = "scaler = ampmon.GradScaler(init_scale={init_scale})"


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge the newest samples that are finite."""
    samples = scaler.samples
    one, other = samples.on_grid, samples.off_grid
    whole = (one.looked + other.looked > 0) & (one.inf + one.nan + other.inf + other.nan == 0)
    finite = np.flatnonzero(whole)
    above = np.flatnonzero((one.sum_squares + other.sum_squares)[finite] > 0)
    since = int(above[-1]) + 1 if len(above) else 0
    zero = finite[since:]
    if len(zero) < LEAST:
        return
    first, last = (int(samples.step[zero[end]]) for end in (0, -1))
    if last - first < PAUSE:
        return
    scale = float(samples.scale[zero[-1]])
    before = float(samples.scale[finite[since - 1]]) if since else None
    why, fix = _cause(scale, before)
    yield Finding(
        rule="zero_gradients",
        severity="critical",
        title=f"All gradients have been 0 since step {count(first)}: the model learns nothing",
        explanation=EXPLANATION.format(samples=count(len(zero)), why=why),
        fix=fix,
        first_step=first,
        last_step=last,
        evidence={"scale": scale, "before": before, "samples": len(zero)},
        figure="underflow",
    )


def _cause(scale: float, before: float | None) -> tuple[str, str]:
    """Return the likely reason and the fix. ``before`` is the scale at which gradients were last above 0, if any."""
    if before is not None and before < scale:
        return HIDDEN.format(before=power_of_two(before), scale=power_of_two(scale)), SHOW
    if scale < INIT_SCALE:
        fix = LARGER.format(init_scale=in_code(INIT_SCALE))
        return SMALL.format(scale=power_of_two(scale)), fix
    return OTHER, ""
