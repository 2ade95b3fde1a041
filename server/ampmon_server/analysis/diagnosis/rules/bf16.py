"""Finds gradients whose range fp16 cannot hold at any scale, but bf16 can."""

from __future__ import annotations

import numpy as np

from ampmon.numerics.formats import FP16
from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import BF16, each_scaler
from ampmon_server.analysis.diagnosis.underflow import MeasuredUnderflow, underflow
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import percent, power_of_two


SPAN = (
    "A larger scale would overflow, and at this scale {share} of the values are subnormal. The sampled gradients span "
    "{binades} powers of two; fp16 spans 40, only 30 of them with all significand bits. {bf16}"
)
CEILING = (
    "At this scale {share} of the values are subnormal, and at {ceiling} steps were skipped. The sampled gradients of "
    "the parameters span only {binades} powers of two, so larger values overflow at {ceiling}: activation gradients, "
    "or gradients of other batches. {bf16}"
)
NORMAL = FP16.exponent_max - FP16.exponent_min_normal + 1
"""Powers of two that fp16 holds with all bits of the significand."""
SPANS = "bf16 spans 261 and needs no scaler, but has 8 significand bits (7 stored) instead of 11 (10 stored)."


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a notice beside the underflow's own finding if no scale cures it."""
    seen = underflow(scaler, thresholds)
    severity = seen.severity(thresholds.subnormal) if seen else None
    if seen is None or severity is None or seen.bits_to_cure is not None:
        return None
    bins = np.flatnonzero(seen.histogram)
    binades = int(bins[-1] - bins[0]) + 1  # from the smallest to the largest magnitude seen
    title, explanation = _words(seen, binades)
    return Finding(
        rule="bf16",
        severity="notice",
        title=f"Consider bf16: {title}",
        explanation=explanation,
        fix=BF16,
        first_step=seen.first_step,
        last_step=seen.last_step,
        evidence={"binades": binades, "share": seen.share, "room_bits": seen.room},
        figure="exponents",
    )


def _words(seen: MeasuredUnderflow, binades: int) -> tuple[str, str]:
    """Title and explanation. The largest gradient seen, or an overflow of one not seen, rules out a larger scale."""
    share = percent(seen.share)
    if seen.ceiling is None or binades > NORMAL:
        title = f"the gradients span {binades} powers of two, and no scale fits both ends in fp16"
        return title, SPAN.format(share=share, binades=binades, bf16=SPANS)
    ceiling = power_of_two(seen.ceiling)
    title = f"{share} of the gradient values are subnormal, and a scale of {ceiling} overflows"
    return title, CEILING.format(share=share, ceiling=ceiling, binades=binades, bf16=SPANS)
