"""The rules, one per file, in order: an earlier rule explains more, so at equal severity its finding comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TypeAlias

from ampmon.wire import Finding
from ampmon_server.model.case import Case
from ampmon_server.model.thresholds import Thresholds


Rule: TypeAlias = Callable[[Case, Thresholds], Iterable[Finding]]

RULES: Sequence[Rule] = tuple(
    import_module(f"{__name__}.{name}").examine
    for name in (
        "lints",
        "scale.dead_scale",
        "ranks_disagree",
        "forward_overflow",
        "nan_not_overflow",
        "forgotten_state",
        "scale.collapse_forecast",
        "diverged",
        "zero_gradients",
        "scale.scale_floor",
        "scale.sawtooth",
        "backward_overflow",
        "culprit_layer",
        "consecutive_skips",
        "scale.low_scale",
        "skip_rate",
        "scale.slow_growth",
        "scale.stuck_scale",
        "subnormal_parameter",
        "subnormal",
        "flushed",
        "crashed",
        "silent",
        "telemetry_gaps",
        "scheduler_ahead",
        "scale.scale_cap",
        "scale.calibration",
        "bf16",
    )
)
"""The function `examine` of each file."""
