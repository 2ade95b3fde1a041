"""How wide a column of pixels is in steps or time: so that columns stay where they are as a run goes on. Pure."""

from __future__ import annotations


def aligned_span(low: int, high: int, columns: int) -> int:
    """The least power of two whose multiples cut ``low`` to ``high`` into at most ``columns`` parts (2 or more)."""
    span = 1
    while high // span - low // span >= columns:
        span *= 2
    return span
