"""Chooses the width of pixel columns along x, so that they keep their places as a run grows. Pure."""

from __future__ import annotations


FINEST = 2.0**-20


def aligned_span(low: int, high: float, columns: int) -> float:
    """Return the least power of two whose multiples cut ``low`` to ``high`` into at most ``columns`` (>= 2) parts.

    If ``high`` is an int, x has whole numbers only and the result is at least 1.
    """
    span: float = 1 if isinstance(high, int) else FINEST
    while high // span - low // span >= columns:
        span *= 2
    return span
