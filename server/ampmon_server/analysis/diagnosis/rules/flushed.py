"""Finds gradients that fp16 flushed to zero, told apart from structural zeros by how they change with the scale."""

from __future__ import annotations

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.analysis.diagnosis.rules.subnormal import fix
from ampmon_server.analysis.diagnosis.underflow import underflow
from ampmon_server.analysis.flushed import flushed_in
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import percent, plural


EXPLANATION = (
    "A value below 2⁻²⁵ becomes 0 in fp16, and then looks like any other zero. But when the scale changes, true zeros "
    "stay zero and flushed values do not. This share is estimated from the number of zeros before and after "
    "{experiments}. Flushed elements of the gradient do not train their weights at all."
)


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Judge by the lower bound of the estimate, unless growth cures it soon."""
    gone, seen = flushed_in(scaler.samples), underflow(scaler, thresholds)
    if gone is None or seen is None or not gone.plausible:
        return None
    severity = thresholds.flushed.severity(gone.low)
    if severity is None or seen.is_climbing:
        return None
    return Finding(
        rule="flushed",
        severity=severity,
        title=f"At least {percent(gone.low)} of the gradient values were flushed to zero (estimate "
        f"{percent(gone.estimate)})",
        explanation=EXPLANATION.format(
            experiments=plural(gone.experiments, "change of the scale", "changes of the scale")
        ),
        fix=fix(seen, np.inf),
        first_step=seen.first_step,
        last_step=seen.last_step,
        evidence={
            "low": gone.low,
            "estimate": gone.estimate,
            "high": gone.high,
            "experiments": gone.experiments,
            "bits": seen.bits_to_cure,
        },
        figure="underflow",
    )
