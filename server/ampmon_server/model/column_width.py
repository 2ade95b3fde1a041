"""How wide a column of pixels is along x: so that columns stay where they are as a run goes on. Pure."""

from __future__ import annotations


FINEST = 2.0**-20


def aligned_span(low: int, high: float, columns: int) -> float:
    """The least power of two whose multiples cut ``low`` to ``high`` into at most ``columns`` parts (2 or more).

    It is 1 or more where x is of whole numbers, of which ``high`` is one.
    """
    span: float = 1 if isinstance(high, int) else FINEST
    while high // span - low // span >= columns:
        span *= 2
    return span
