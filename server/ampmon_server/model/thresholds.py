"""From where on a finding is worth a notice, a warning, or is critical. Sources are in docs/findings/."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ampmon.wire import Severity


class Levels(NamedTuple):
    """The least value of each severity; None where it is never that."""

    notice: float | None
    warning: float | None
    critical: float | None

    def severity(self, value: float) -> Severity | None:
        """The worst severity whose level ``value`` reaches; None where it reaches none, or is NaN."""
        if self.critical is not None and value >= self.critical:
            return "critical"
        if self.warning is not None and value >= self.warning:
            return "warning"
        return "notice" if self.notice is not None and value >= self.notice else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Shares are 0..1, times seconds, the rest counts of updates."""

    skip_rate: Levels = field(default=Levels(0.002, 0.01, 0.05))
    """Of the last `skip_window` updates, calibration left out."""
    skip_window: int = 1000
    consecutive_skips: Levels = field(default=Levels(4, 8, 16))
    skips_to_death: int = 32
    """So few skips from a dead scale are critical."""
    low_scale: float = 1.0
    """A scale below it is a warning."""
    scheduler_ahead: Levels = field(default=Levels(0.0, 0.01, None))
    """Skipped updates at which the scheduler went on, of all updates; a few alone are no more than a notice."""
    subnormal: Levels = field(default=Levels(None, 0.05, 0.5))
    """Share of the elements of all parameters on fp16's grid."""
    subnormal_of_parameter: Levels = field(default=Levels(None, 0.5, None))
    flushed: Levels = field(default=Levels(0.001, 0.01, 0.1))
    """Lower bound of the estimate."""
    growth_patience: int = 500
    """Updates within which a scale that is too small should have grown."""
    stuck_intervals: float = 3.0
    """Growth intervals without a skip in which the scale has not grown."""
    nan_window: int = 100
    """Two skips for NaN without inf within so many updates are critical."""
    silent_s: float = 60.0
    silent_updates: float = 10.0
    """Of the median update's duration, where that is longer."""
