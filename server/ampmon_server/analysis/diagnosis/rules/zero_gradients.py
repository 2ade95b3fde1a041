"""Finds gradients that are all zero."""

from __future__ import annotations

import numpy as np

from ampmon.numerics.formats import FP16
from ampmon.wire import Finding, Severity
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.analysis.diagnosis.underflow import LEAST
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.names import training_loss
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
NO_LOSS = (
    "The logged {name} is 0 too, as a hinge loss may be at the end. If it should not be, compute it in fp32: fp16 "
    "rounds values below 2⁻²⁵ to 0."
)
OTHER = (
    "Either the loss is 0, as a hinge loss may be at the end, or it is so small that fp16 rounds its gradients to 0, "
    "or it does not depend on these parameters."
)
UNRELATED = (
    "The logged {name} is not 0 and not too small for this scale. If it is the loss that is scaled, it does not depend "
    "on these parameters, or its derivative is 0 there, as behind dead ReLUs, a saturated sigmoid or `clamp`."
)
SHOW = (
    "scaler.scale(loss).backward()  # leave inf and NaN in the gradients: the scaler skips them\n"
    "scaler.step(optimizer)\nscaler.update()"
)
PAUSE = 50
"""Fewer updates without a gradient may be a pause, such as a time without a reward."""
MEAN_OF = 2**31
"""A loss is the mean of fewer elements, such as voxels. The gradients of each are that much smaller."""
CHANCE = 0.05
"""So many samples of 0 in a row must be less likely than this, by the share of earlier ones that were 0."""
LARGER = "scaler = ampmon.GradScaler(init_scale={init_scale})"


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Judge the newest samples that are finite."""
    samples = scaler.samples
    one, other = samples.on_grid, samples.off_grid
    whole = (one.looked + other.looked > 0) & (one.inf + one.nan + other.inf + other.nan == 0)
    finite = np.flatnonzero(whole)
    above = np.flatnonzero((one.sum_squares + other.sum_squares)[finite] > 0)
    since = int(above[-1]) + 1 if len(above) else 0
    zero = finite[since:]
    if len(zero) < LEAST:
        return None
    first, last = (int(samples.step[zero[end]]) for end in (0, -1))
    name = training_loss(scaler.logged) or ""
    least, most = _losses(scaler.logged.get(name), first)
    usual = 1 - len(above) / since if since else 0.0
    # The gradients, or the loss, are 0 in some batches only.
    if last - first < PAUSE or usual ** len(zero) > CHANCE or least == 0 < most:
        return None
    scale = float(samples.scale[zero[-1]])
    before = float(samples.scale[finite[since - 1]]) if since else None
    # Gradients computed in fp32 may be above fp16's largest number without an overflow. Those of several backward
    # passes are sums, so they tell if there are no others.
    largest = np.where(one.looked > 0, one.amax, other.amax)
    peak = float(largest[finite[since - 1]]) if since else 0.0
    severity, why, fix = _cause(scale, before, peak, least)
    return Finding(
        rule="zero_gradients",
        severity=severity,
        title=f"All gradients have been 0 since step {count(first)}: the model learns nothing",
        explanation=EXPLANATION.format(samples=count(len(zero)), why=why.format(name=name)),
        fix=fix,
        first_step=first,
        last_step=last,
        evidence={"scale": scale, "before": before, "samples": len(zero)},
        figure="underflow",
    )


def _losses(cells: Cells | None, first: int) -> tuple[float, float]:
    """The least and the largest size of the loss after step ``first``. NaN if it is unknown."""
    if cells is None or not (cells["first"] > first).any():
        return np.nan, np.nan
    cells = cells[cells["first"] > first]
    ends = np.abs([cells["value_min"], cells["value_max"]])
    return float(ends.min()), float(ends.max())


def _cause(
    scale: float, before: float | None, peak: float, loss: float
) -> tuple[Severity, str, str]:
    """Return the severity, the likely reason and the fix.

    ``before`` is the scale at which gradients were last above 0, and ``peak`` the largest then. If that would overflow
    at the scale now, overflows are hidden, unless the ``loss``, which may be NaN, is 0: then the scale grows without
    end. Otherwise only a scale that is small, and smaller than then, is the cause, unless the scaled loss shows that it
    is not.
    """
    if loss == 0:
        return "notice" if before else "warning", NO_LOSS, ""
    if before and scale > before and peak * scale / before > FP16.max:
        why = HIDDEN.format(before=power_of_two(before), scale=power_of_two(scale))
        return "critical", why, SHOW
    if loss * scale >= MEAN_OF * FP16.min_subnormal / 2:
        return "warning", UNRELATED, ""
    if scale < min(before or INIT_SCALE, INIT_SCALE):
        fix = LARGER.format(init_scale=in_code(INIT_SCALE))
        return "critical", SMALL.format(scale=power_of_two(scale)), fix
    return "warning", OTHER, ""
