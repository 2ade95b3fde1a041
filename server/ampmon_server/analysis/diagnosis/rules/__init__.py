"""The rules, one per file, in order: an earlier rule explains more, so at equal severity its finding comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules import (
    backward_overflow,
    bf16,
    consecutive_skips,
    crashed,
    culprit_layer,
    diverged,
    flushed,
    forgotten_state,
    forward_overflow,
    lints,
    nan_not_overflow,
    ranks_disagree,
    scheduler_ahead,
    silent,
    skip_rate,
    subnormal,
    subnormal_parameter,
    telemetry_gaps,
    zero_gradients,
)
from ampmon_server.analysis.diagnosis.rules.scale import (
    calibration,
    collapse_forecast,
    dead_scale,
    low_scale,
    sawtooth,
    scale_cap,
    scale_floor,
    slow_growth,
    stuck_scale,
)
from ampmon_server.model.case import Case
from ampmon_server.model.thresholds import Thresholds


Rule: TypeAlias = Callable[[Case, Thresholds], Iterable[Finding]]

RULES: Sequence[Rule] = (
    lints.examine,
    dead_scale.examine,
    ranks_disagree.examine,
    forward_overflow.examine,
    nan_not_overflow.examine,
    forgotten_state.examine,
    collapse_forecast.examine,
    diverged.examine,
    zero_gradients.examine,
    scale_floor.examine,
    sawtooth.examine,
    backward_overflow.examine,
    culprit_layer.examine,
    consecutive_skips.examine,
    low_scale.examine,
    skip_rate.examine,
    slow_growth.examine,
    stuck_scale.examine,
    subnormal_parameter.examine,
    subnormal.examine,
    flushed.examine,
    crashed.examine,
    silent.examine,
    telemetry_gaps.examine,
    scheduler_ahead.examine,
    scale_cap.examine,
    calibration.examine,
    bf16.examine,
)
