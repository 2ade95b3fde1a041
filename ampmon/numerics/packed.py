"""The packed row of a gradient's statistics, int64 [WIDTH], as `eager` and the kernels write it.

Imports nothing, because the process that compiles kernels needs it too.
"""

from __future__ import annotations


COUNTS = ("looked", "zeros", "on_grid", "inf", "nan")
"""The first columns. All columns are integers, or the bits of fp64 values."""
AMAX = len(COUNTS)
SUM_SQUARES = AMAX + 1
HISTOGRAM = SUM_SQUARES + 1
"""The first of `BINS` columns."""
BINS = 64
WIDTH = HISTOGRAM + BINS
