"""The statistics of a parameter's gradient in one sample. The heatmap, the table and its sorting find them here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon.numerics.histogram import gradient_norm, headroom_bits
from ampmon.numerics.sampling_error import Floats


ColumnOf: TypeAlias = Callable[[str], npt.NDArray[Any]]
"""Returns a column of numbers by name, [..., n] for n parameters.

`looked`, `zeros`, `subnormal`, `on_grid`, `inf` and `nan` count the elements looked at. `amax` is the largest magnitude
of these. `elements` counts all that they stand for, and `sum_squares` is the sum of squares of all those, estimated.
"""

Unit: TypeAlias = Literal["share", "magnitude", "headroom"]
"""The heatmap draws a share as it is, a magnitude as its logarithm, and a headroom as bits below fp16's maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A number of a parameter's gradient in one sample.

    ``of`` computes it from columns and the loss scale; for a headroom, the magnitude that it follows from. Rolled-up
    samples keep the worst in the field ``stored``: the greatest, or with ``least`` the least.

    ``title`` heads the column of the table, ``word`` names it in sentences, and ``short`` is the label beside colours.
    ``section`` is an anchor in docs/measures.md.
    """

    title: str
    word: str
    definition: str
    section: str
    unit: Unit
    short: str
    of: Callable[[ColumnOf, Floats], Floats]
    stored: str
    least: bool = False

    @property
    def lower_is_worse(self) -> bool:
        """Whether lower values are worse as they are drawn."""
        return self.least != (self.unit == "headroom")

    def values(self, columns: ColumnOf, scale: Floats) -> Floats:
        """Compute it for all parameters. NaN where it is unknown, but an unknown magnitude counts as infinite."""
        looked = columns("looked") > 0
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            found = self.of(columns, scale)
        if self.unit != "share" and not self.least:  # elements that are NaN make it so
            found = np.where(np.isnan(found), np.inf, found)
        return np.where(looked, found, np.nan)

    def reported(self, values: Floats) -> Floats:
        """Convert values to what people read: a headroom to bits below fp16's maximum."""
        return headroom_bits(values) if self.unit == "headroom" else values

    def drawn(self, values: Floats) -> Floats:
        """Convert values to what the heatmap draws. A logarithm may be infinite."""
        with np.errstate(divide="ignore"):
            return np.log10(values) if self.unit == "magnitude" else self.reported(values)


def _share(counted: str) -> Callable[[ColumnOf, Floats], Floats]:
    return lambda columns, scale: columns(counted) / columns("looked")


STATISTICS: Mapping[str, Statistic] = {
    "subnormal": Statistic(
        title="Subnormal",
        word="subnormal or below range",
        short="subnormal",
        definition="Nonzero elements of the scaled gradient below 2⁻¹⁴: the smaller the value, the fewer bits fp16 "
        "keeps, down to none.",
        section="the-classes",
        unit="share",
        of=_share("subnormal"),
        stored="subnormal_max",
    ),
    "zero": Statistic(
        title="Zero",
        word="zero",
        short="zero",
        definition="Share of elements that are exactly zero: flushed by fp16, or zero in any format.",
        section="the-classes",
        unit="share",
        of=_share("zeros"),
        stored="zero_max",
    ),
    "headroom": Statistic(
        title="Headroom",
        word="headroom",
        short="bits",
        definition="Bits between the largest scaled element and 65 504, fp16's largest number.",
        section="derived",
        unit="headroom",
        of=lambda columns, scale: columns("amax"),
        stored="amax",
    ),
    "norm": Statistic(
        title="Norm, unscaled",
        word="norm",
        short="log10",
        definition="The 2-norm of the unscaled gradient: it does not change with the loss scale.",
        section="derived",
        unit="magnitude",
        of=lambda columns, scale: gradient_norm(columns("sum_squares"), scale),
        stored="norm",
    ),
    "on_grid": Statistic(
        title="fp16-representable",
        word="fp16-representable",
        short="on grid",
        definition="Share of elements that fp16 holds exactly. Below 99 %, the gradient was computed in fp32, so its "
        "small elements do not show underflow in fp16.",
        section="on-the-grid-or-not",
        unit="share",
        of=_share("on_grid"),
        stored="on_grid_min",
        least=True,
    ),
}
"""Every statistic by its name in addresses, in the order of the table's columns."""
