"""The time axis of compared runs: the time since each run's start, in words of seconds, hours and days."""

from __future__ import annotations

import math
from typing import Any

from ampmon_server.charts.parts.source import Window


_SECOND = 1_000_000
_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200)
_STRIDES = (
    *(each * 1000 for each in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(each * _SECOND for each in _SECONDS),
    *(each * 86400 * _SECOND for each in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)
"""Distances between ticks, in us."""
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"))


def elapsed(frame: Window) -> dict[str, Any]:
    """Return an axis of the time since each run's start, in ms, with ticks at round times."""
    length = max(frame.high - frame.low, 1)
    stride = next((each for each in _STRIDES if length / each <= 8), _STRIDES[-1])
    first = math.ceil(frame.low / stride)
    ticks = [each * stride for each in range(first, math.floor(frame.high / stride) + 1)]
    pad = length / 400
    return {
        "type": "linear",
        "range": [(frame.low - pad) / 1000, (frame.high + pad) / 1000],
        "title": {"text": "time since the start of each run", "standoff": 4},
        "tickvals": [tick / 1000 for tick in ticks],
        "ticktext": [_duration(tick / _SECOND) for tick in ticks],
        "tickformat": "",
    }


def _duration(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:g}\u202f{unit}"
    return "0"
