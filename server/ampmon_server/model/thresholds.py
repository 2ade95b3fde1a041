"""The severities of findings, and the thresholds of each. The sources of the thresholds are in docs/findings/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ampmon.wire import Severity


RANKS: Mapping[Severity, int] = {"critical": 0, "warning": 1, "notice": 2}
"""The worst severity has the lowest number."""


def worse(one: Severity, other: Severity) -> Severity:
    return min(one, other, key=lambda each: RANKS[each])


def milder(one: Severity, other: Severity) -> Severity:
    return max(one, other, key=lambda each: RANKS[each])


class Levels(NamedTuple):
    """The lowest value of each severity. None means that the severity is never reached."""

    notice: float | None
    warning: float | None
    critical: float | None

    def severity(self, value: float) -> Severity | None:
        """Return the worst severity whose level ``value`` reaches. None if it reaches no level or is NaN."""
        if self.critical is not None and value >= self.critical:
            return "critical"
        if self.warning is not None and value >= self.warning:
            return "warning"
        return "notice" if self.notice is not None and value >= self.notice else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Shares are 0..1, times are in seconds, counts are in updates unless a field says otherwise."""

    skip_rate: Levels = field(default=Levels(0.002, 0.01, 0.05))
    """Share of the last `skip_window` updates, without calibration."""
    skip_window: int = 1000
    consecutive_skips: Levels = field(default=Levels(4, 8, 16))
    skips_to_death: int = 32
    """Fewer remaining skips than this until the scale is dead are critical."""
    low_scale: float = 1.0
    """A scale below this is a warning."""
    scheduler_ahead: Levels = field(default=Levels(0.0, 0.01, None))
    """Share of the updates that were skipped although the scheduler stepped. A few alone are at most a notice."""
    subnormal: Levels = field(default=Levels(None, 0.05, 0.5))
    """Share of the elements of all parameters on fp16's grid."""
    subnormal_of_parameter: Levels = field(default=Levels(None, 0.5, None))
    flushed: Levels = field(default=Levels(0.001, 0.01, 0.1))
    """Lower bound of the estimate."""
    growth_patience: int = 500
    """Updates within which a scale that is too small should grow enough."""
    stuck_intervals: float = 3.0
    """Growth intervals without a skip and without growth from which on the scale is stuck."""
    nan_window: int = 100
    """Two skips for NaN without inf less than this many updates apart are critical."""
    silent_s: float = 60.0
    silent_updates: float = 10.0
    """Multiple of the median update duration that replaces `silent_s` if it is longer."""
