"""How much of a scaler's gradients is too small for fp16 at its newest scale, and how far the scale could grow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampmon.numerics import sampling_error
from ampmon.numerics.formats import FP16
from ampmon.numerics.histogram import SMALL_CLASSES, classify, headroom_bits, shift
from ampmon_server.analysis.diagnosis.ledger import skipped_updates
from ampmon_server.analysis.diagnosis.updates import newest_scale
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.series import Floats, Ints, Totals, take, take_samples


NEWEST = 16
"""So many samples at the newest scale are taken together."""
LEAST = 3
"""Fewer samples than this say nothing."""

UNUSUAL = 3.0
"""An overflow so many bits below a scale that held is one of its batch: gradients of others differ by less."""

ERRORS = (7.0, 33.0)
"""The error of a gradient, in multiples of what rounding its subnormal elements to fp16's grid makes of it.

It is larger, for what is rounded on the way back is too: measured on three networks at scales of 1 to 16.
"""


@dataclass(frozen=True, slots=True)
class MeasuredUnderflow:
    """Of the newest samples of what is on fp16's grid, at one scale, from ``first_step`` to ``last_step``.

    ``share`` of the elements are subnormal, at least ``low`` of all by what was looked at. ``histogram`` [64] adds the
    samples up, with ``zeros`` beside it. ``room`` are the bits by which the scale could grow, as far as is known;
    ``ceiling`` is the least scale that overflowed, where that leaves less room than the largest gradient that was seen.
    ``rounding`` is the error of the gradient by rounding what is seen to fp16's grid, over its norm.
    """

    first_step: int
    last_step: int
    samples: int
    scale: float
    share: float
    low: float
    histogram: Ints
    zeros: int
    room: float
    ceiling: float | None
    rounding: float

    def share_at(self, bits: int) -> float:
        """The share of subnormal elements at ``2^bits`` times the scale. An estimate: what is flushed stays a zero."""
        counts = shift(self.histogram, bits)
        none = np.zeros((), np.int64)
        subnormal = int(classify(counts, none, none).subnormal)
        return subnormal / max(int(counts.sum()) + self.zeros, 1)

    @property
    def error(self) -> tuple[float, float]:
        """Between what the gradient's relative error is, by `ERRORS`; fp16's own rounding is not in it."""
        low, high = (min(each * self.rounding, 1.0) for each in ERRORS)
        return low, high


def underflow(scaler: ScalerCase) -> MeasuredUnderflow | None:
    """None where too few samples show it."""
    samples = scaler.samples
    of = samples.on_grid
    fine = (of.looked > 0) & (of.inf + of.nan == 0) & (of.histogram.any(1))
    if not fine.any():
        return None
    scale = float(samples.scale[np.flatnonzero(fine)[-1]])
    rows = np.flatnonzero(fine & (samples.scale == scale))[-NEWEST:]
    if len(rows) < LEAST or not scale > 0 or not math.isfinite(scale):
        return None
    chosen = take_samples(samples, rows)
    share, low = _subnormal(take(of, rows))
    room, ceiling = _room(scaler, scale, float(chosen.on_grid.amax.max()))
    return MeasuredUnderflow(
        first_step=int(chosen.step[0]),
        last_step=int(chosen.step[-1]),
        samples=len(rows),
        scale=scale,
        share=share,
        low=low,
        histogram=chosen.on_grid.histogram.sum(0),
        zeros=int(chosen.on_grid.zeros.sum()),
        room=room,
        ceiling=ceiling,
        rounding=_rounding(chosen.on_grid),
    )


def _subnormal(of: Totals) -> tuple[float, float]:
    """The share of all samples together, and the low end of its 95 % interval."""
    place = SMALL_CLASSES.index("subnormal")
    classes = of.classes()
    share = classes.subnormal.sum() / max(int(classes.total.sum()), 1)
    elements = max(float(of.elements.sum()), 1.0)
    variance = of.variance[:, place].sum() / elements**2
    low, _ = sampling_error.interval(
        np.array([share]), np.array([variance]), np.array([of.grain.mean() / elements])
    )
    return float(share), float(low[0])


def _room(scaler: ScalerCase, scale: float, amax: float) -> tuple[float, float | None]:
    """Bits between the scale and the largest that fits, by the largest gradient seen and by skips at larger scales.

    And the least scale of those skips, if it is they that leave less.
    """
    room, ceiling = float(headroom_bits(np.array([amax]))[0]), None
    failed = _failed(scaler)
    failed = failed[failed > scale * _held(scaler) / amax / 2**UNUSUAL]
    if len(failed):
        least = float(failed.min())
        below = math.log2(least) - math.log2(scale) - 1
        if below < room:
            room, ceiling = below, least
    newest = newest_scale(scaler)
    return (max(room, 0.0) if newest and newest > 0 else 0.0), ceiling


def _failed(scaler: ScalerCase) -> Floats:
    """The scales at which newest updates overflowed, but for what no scale helps: NaN alone, or the way forward."""
    no_overflow = [
        each.step
        for each in skipped_updates(scaler)
        if each.beyond_scale or each.origin == "forward"
    ]
    skipped = scaler.recent[scaler.recent["skipped"] > 0]
    failed: Floats = skipped["scale_first"][~np.isin(skipped["first"], no_overflow)]
    return failed[failed > 0]


def _held(scaler: ScalerCase) -> float:
    """The largest scaled gradient that `LEAST` samples or more had without an overflow."""
    samples = scaler.samples
    skipped = scaler.recent["first"][scaler.recent["skipped"] > 0]
    of = take(samples.on_grid, np.flatnonzero(~np.isin(samples.step, skipped)))
    largest = np.sort(of.amax[(of.inf + of.nan == 0) & np.isfinite(of.amax)])
    return float(largest[-LEAST]) if len(largest) >= LEAST else 0.0


def _rounding(of: Totals) -> float:
    """Elements below 2⁻¹⁴ are rounded to multiples of 2⁻²⁴, each with an error of up to half of that."""
    classes = of.classes()
    small = float(classes.subnormal.sum() + classes.zero.sum())
    norm = math.sqrt(max(float(of.sum_squares.sum()), 0.0))
    return FP16.min_subnormal * math.sqrt(small / 12) / norm if norm > 0 else 0.0
