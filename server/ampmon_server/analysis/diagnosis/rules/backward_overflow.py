"""Finds one module whose gradient repeatedly overflows in the backward pass."""

from __future__ import annotations

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.ledger import of_origin
from ampmon_server.analysis.diagnosis.rules.parts import LAYER_IN_FP32, each_scaler
from ampmon_server.analysis.diagnosis.updates import calibrated_from
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count


EXPLANATION = (
    "The loss was finite, and so were the gradients down to {module}, where they overflowed first. The loss scale has "
    "to be small enough for that one module, which leaves less room for the small gradients of all others. In fp32, "
    "it no longer limits the scale."
)
FIX = (
    "# Compute {where} in fp32. If it still overflows first, check what its backward pass multiplies by:\n"
    f"{LAYER_IN_FP32}"
)
RECURRING = 3
MOST = 0.6
"""Least share of the skips with a known module."""


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a notice, which takes the severity of what it explains."""
    # During calibration, any gradient overflows, because the scale is too large.
    began, module = of_origin(scaler, "backward", calibrated_from(scaler))
    found = [each for each in began if each.module]
    at_it = [each for each in found if each.module == module]
    if module is None or len(at_it) < RECURRING or len(at_it) < MOST * len(found):
        return None
    return Finding(
        rule="backward_overflow",
        severity="notice",
        title=f"{count(len(at_it))} of {count(len(found))} skips began in the backward pass, in module {module}",
        explanation=EXPLANATION.format(module=f"module {module}"),
        fix=FIX.format(where=f"module {module}"),
        first_step=at_it[0].step,
        last_step=int(scaler.recent["last"][-1]),
        parameters=(module,),
        evidence={"skipped": len(at_it)},
        figure="activations",
    )
