"""Finds gradients so small that fp16 keeps only some bits of their significand."""

from __future__ import annotations

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import BF16, each_scaler
from ampmon_server.analysis.diagnosis.underflow import (
    BITS_MAX,
    ERRORS,
    FLOOR,
    MeasuredUnderflow,
    underflow,
)
from ampmon_server.analysis.diagnosis.updates import is_set_by_hand
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.scale_policy import INIT_SCALE
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import in_code, percent, power_of_two


EXPLANATION = (
    "Below 2⁻¹⁴, fp16 numbers have fewer and fewer significand bits, and below 2⁻²⁴ they are 0. Subnormal values are "
    "only a sign: most precision is lost earlier in the backward pass, where it cannot be counted. {cost}"
)
COSTS = "Estimated relative gradient error: {low} to {high}. Rounding to fp16 alone causes 0.06 %."
HARMLESS = "The estimated error of the whole gradient is no larger than that of rounding to fp16."
ONE = " That of one parameter may be {high}."
HIGHER = (
    "scaler = ampmon.GradScaler(init_scale={init_scale})  "
    "# {share} would be subnormal, not counting values that are 0 now\n"
    "scaler.update()  # without new_scale, so that it can grow"
)
SPARE = 2
"""Bits that stay free between the largest sampled gradient and the largest fp16 number."""


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Judge all parameters on fp16's grid by the low end of their subnormal share, unless growth cures it soon."""
    seen = underflow(scaler, thresholds)
    severity = seen.severity(thresholds.subnormal) if seen else None
    if seen is None or severity is None or seen.is_climbing:
        return None
    by_hand = ", passed to update()" if is_set_by_hand(scaler.recent) else ""
    return Finding(
        rule="subnormal",
        severity=severity,
        title=f"{shares(seen)} at scale {power_of_two(seen.scale)}{by_hand}",
        explanation=EXPLANATION.format(cost=cost(seen)),
        fix=fix(seen),
        first_step=seen.first_step,
        last_step=seen.last_step,
        evidence={
            "share": seen.share,
            "low": seen.low,
            "samples": seen.samples,
            "room_bits": seen.room,
            "error_low": seen.error[0],
            "error_high": seen.error[1],
        },
        figure="underflow",
    )


def shares(seen: MeasuredUnderflow) -> str:
    """Return the subnormal share in words, and that of zeros if the subnormal one alone is no finding."""
    alone = seen.thresholds.subnormal.severity(seen.low) is not None
    zero = "" if alone else f" and {percent(seen.zero)} are 0"
    return f"{percent(seen.share)} of the gradient values are subnormal{zero}"


def cost(seen: MeasuredUnderflow) -> str:
    """Return a sentence on what the underflow does to the gradient."""
    low, high = seen.error
    if high < FLOOR:
        if seen.is_harmless or seen.worst is None:
            return HARMLESS
        return HARMLESS + ONE.format(high=percent(min(ERRORS[1] * seen.worst, 1.0)))
    return COSTS.format(low=percent(low), high=percent(high))


def fix(seen: MeasuredUnderflow, most: float = INIT_SCALE) -> str:
    """Return code for a scale that cures the underflow, as in `beyond`, or for bf16 if no scale fits."""
    bits = seen.bits_to_cure
    if bits is None:
        return BF16
    bits = beyond(bits, seen, most)
    return HIGHER.format(
        init_scale=in_code(seen.scale * 2.0**bits), share=percent(seen.share_at(bits))
    )


def beyond(bits: int, seen: MeasuredUnderflow, most: float = INIT_SCALE) -> int:
    """Return by how many bits to raise the scale: beyond those of the cure up to ``most`` if there is room.

    Flushed elements may need a larger scale than those that were seen.
    """
    fits = min(seen.room - SPARE, BITS_MAX, np.log2(most / seen.scale))
    return max(bits, int(fits))
