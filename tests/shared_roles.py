"""The colours of web/roles.json and which roles share a chart, for tests of contrast and difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ampmon_server.charts.together import COLOURS


ROLES = json.loads((Path(__file__).parents[1] / "web" / "roles.json").read_text(encoding="utf-8"))

SHARED = {
    "scale": ("scale", "growth", "backoff", "manual", "skip", "ink"),
    "skips": ("skip",),
    "underflow": ("normal", "subnormal", "below-grid", "zero", "skip"),
    "exponents": ("muted", "ink"),
    "parameters": (),
    "parameter": ("subnormal", "zero", "accent", "skip", "muted"),
    "histogram": ("normal", "subnormal", "below-grid", "zero", "skip", "ink"),
    "activations": ("subnormal", "below-grid", "zero", "skip", "ink"),
    "whatif": ("zero", "subnormal", "skip", "scale"),
    "simulated": ("scale", "ink", "muted"),
    "scalars": ("accent", "skip"),
    "norm": ("accent", "skip"),
    "timing": ("accent",),
    "ranks": ("normal", "skip", "ink"),
    "compared runs": tuple(f"run-{index}" for index in range(1, COLOURS + 1)),
    "table of skips": ("skip", "nan"),
}
"""The roles of each chart's marks, lines and areas, any two of which may touch."""

GROUNDS = {"background", "hairline"}
"""Background colours, which need not differ from others."""


def named(part: Any) -> Iterator[str]:
    """Yield the roles that a part of a figure names."""
    if isinstance(part, dict | list | tuple):
        for each in part.values() if isinstance(part, dict) else part:
            yield from named(each)
    elif isinstance(part, str) and part.startswith("role:"):
        yield part.removeprefix("role:")
