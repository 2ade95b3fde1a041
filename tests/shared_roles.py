"""The colours of web/roles.json, and which of them share a chart: what their contrast and difference is tested of."""

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
    "compared runs": tuple(f"run-{place}" for place in range(1, COLOURS + 1)),
    "table of skips": ("skip", "nan"),
}
"""Of each chart the roles of its marks, lines and areas: any two may lie beside one another."""

GROUNDS = {"background", "hairline"}
"""What sets marks off, and is not to be told from others."""


def named(part: Any) -> Iterator[str]:
    """The roles that a part of a figure names."""
    if isinstance(part, dict | list | tuple):
        for each in part.values() if isinstance(part, dict) else part:
            yield from named(each)
    elif isinstance(part, str) and part.startswith("role:"):
        yield part.removeprefix("role:")
