"""By how much a scale must grow to cure an underflow, and whether it will have done so soon."""

from __future__ import annotations

import math

from ampmon_server.case import ScalerCase
from ampmon_server.diagnosis.underflow import Underflow
from ampmon_server.diagnosis.updates import is_set_by_hand
from ampmon_server.thresholds import Thresholds


BITS_MAX = 24

LATE = 100
"""Updates after which a scaler has told of another growth interval for certain, as it does within fifty."""


def bits_to_cure(seen: Underflow, thresholds: Thresholds) -> int | None:
    """By how many bits the scale must grow for less than a warning; None where there is no room for that."""
    bearable = thresholds.subnormal.warning or 0.0
    for bits in range(1, min(int(seen.room), BITS_MAX) + 1):
        if seen.share_at(bits) < bearable:
            return bits
    return None


def updates_to_grow(scaler: ScalerCase, bits: int) -> float:
    """Updates until the scale has grown by so many bits, if none is skipped: those since it last moved are over."""
    policy = scaler.policy
    if not policy.growth_factor > 1 or is_past_growth(scaler):
        return math.inf
    growths = math.ceil(bits / math.log2(policy.growth_factor))
    return max(growths * policy.growth_interval - (scaler.growth_tracker or 0), 0)


def is_past_growth(scaler: ScalerCase) -> bool:
    """Whether torch waits in vain: it grows where the tracker comes to the interval, not where that is past it."""
    interval = scaler.policy.growth_interval
    return interval == 0 or (scaler.growth_tracker or 0) >= interval + LATE


def is_climbing(scaler: ScalerCase, seen: Underflow, thresholds: Thresholds) -> bool:
    """Whether the scaler will have cured the underflow by itself before long."""
    bits = bits_to_cure(seen, thresholds)
    if bits is None or is_set_by_hand(scaler.recent):
        return False
    return updates_to_grow(scaler, bits) <= thresholds.growth_patience
