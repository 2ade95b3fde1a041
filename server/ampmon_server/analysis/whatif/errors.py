"""The measured error of a shifted histogram, from gradients computed again at other scales (docs/methods.md).

The measurement has 3136 pairs of scales, 4 to 2^38 apart, of 15 gradients of 8 models. Each gradient was computed at
both scales from the same weights and data. Every estimate from a shifted histogram is widened by these errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias


Share: TypeAlias = Literal["underflow", "subnormal", "overflow"]


class Error(NamedTuple):
    """The most by which a share is over- and underestimated in 95 % of the pairs up to ``bits`` apart."""

    bits: int
    underflow_over: float
    underflow_under: float
    subnormal_over: float
    subnormal_under: float


DOWN: Sequence[Error] = (
    Error(4, 0.0004, 0.0, 0.0002, 0.0005),
    Error(8, 0.0007, 0.0, 0.0003, 0.0007),
    Error(16, 0.0012, 0.0, 0.0004, 0.0012),
    Error(38, 0.0021, 0.0, 0.0004, 0.0021),
)
"""To smaller scales. The worst was 56 % too low: activation gradients were flushed upstream of what samples see."""

UP: Sequence[Error] = (
    Error(4, 0.0159, 0.0, 0.0002, 0.0182),
    Error(8, 0.0399, 0.0, 0.0002, 0.0486),
    Error(16, 0.2984, 0.0, 0.0001, 0.0708),
    Error(38, 1.0, 0.0, 0.0, 0.0088),
)
"""To larger scales, for all zeros: flushed ones come back as subnormal elements that no bin holds.

Beyond 2^16 all zeros may come back, so nothing is known about zeros there.
"""


def widened(share: Share, bits: int, low: float, high: float) -> tuple[float, float]:
    """Widen the ends of a share that was estimated from a histogram shifted by ``bits``.

    Overflow stays as it is. Its error is unknown, because activation gradients overflow before those of weights.
    """
    if bits == 0 or share == "overflow":
        return low, high
    table = UP if bits > 0 else DOWN
    error = next((each for each in table if abs(bits) <= each.bits), table[-1])
    over, under = (
        (error.underflow_over, error.underflow_under)
        if share == "underflow"
        else (error.subnormal_over, error.subnormal_under)
    )
    return max(low - over, 0.0), min(high + under, 1.0)
