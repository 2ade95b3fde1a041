"""Finds underflow that a larger scale would cure, but that the scaler will not reach for a long time."""

from __future__ import annotations

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import RESTART, each_scaler
from ampmon_server.analysis.diagnosis.rules.subnormal import beyond, cost, shares
from ampmon_server.analysis.diagnosis.underflow import is_past_growth, underflow, updates_to_grow
from ampmon_server.analysis.diagnosis.updates import is_set_by_hand
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, in_code, percent, plural, power_of_two


EXPLANATION = (
    "{share} of the gradient values are subnormal: fp16 holds them with few significant bits, and smaller ones not at "
    "all. A scale at least {times} times as large would cure that and still fit, but {tries}. {cost}"
)
TRIES = "the scaler tries a larger one only after every growth_interval = {interval} steps without a skip"
PAST = (
    "torch tries a larger one only when its growth tracker equals growth_interval = {interval}, and the tracker is "
    "past that"
)
FIX = (
    "scaler = ampmon.GradScaler(init_scale={init_scale}, growth_interval={growth_interval})\n"
    f"# in a running job, once, between two iterations:\n{RESTART}"
)
NEVER = 10**8
"""An interval of this many updates is meant to be endless."""


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a finding with the underflow's severity if growth takes longer than `growth_patience`."""
    seen = underflow(scaler, thresholds)
    severity = seen.severity(thresholds.subnormal) if seen else None
    if seen is None or severity is None or is_set_by_hand(scaler.recent):
        return None
    bits = seen.bits_to_cure
    if bits is None or seen.is_climbing:
        return None
    takes, interval = updates_to_grow(scaler, bits), scaler.policy.growth_interval
    when = "never grows" if takes >= NEVER else f"needs at least {count(int(takes))} steps to grow"
    tries = PAST if is_past_growth(scaler) else TRIES
    return Finding(
        rule="slow_growth",
        severity=severity,
        title=f"{shares(seen)}: the scale is {power_of_two(seen.scale)}, "
        f"{plural(bits, 'doubling')} too small, and {when}",
        explanation=EXPLANATION.format(
            share=percent(seen.share),
            times=count(2**bits),
            tries=tries.format(interval=count(interval)),
            cost=cost(seen),
        ),
        fix=FIX.format(
            init_scale=in_code(seen.scale * 2.0 ** beyond(bits, seen)),
            growth_interval=faster(interval, bits, thresholds.growth_patience),
        ),
        first_step=seen.first_step,
        last_step=seen.last_step,
        evidence={
            "share": seen.share,
            "low": seen.low,
            "bits": bits,
            "growth_interval": interval,
        },
        figure="underflow",
    )


def faster(interval: int, bits: int, patience: int) -> int:
    """Return the growth_interval for ``bits`` doublings within ``patience`` updates, at least 100: one skip in 100."""
    return min(interval or NEVER, max(100, patience // bits))
