"""Measures how much of a scaler's gradients is too small for fp16, and how far and how soon the scale can grow.

If the trainer has measured how much fp16 changes the gradient, findings of underflow get that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from ampmon.numerics import sampling_error
from ampmon.numerics.formats import FP16
from ampmon.numerics.histogram import SMALL_CLASSES, classify, headroom_bits
from ampmon.wire import Finding, Severity
from ampmon_server.analysis.diagnosis.ledger import skipped_updates
from ampmon_server.analysis.diagnosis.updates import is_set_by_hand, newest_scale
from ampmon_server.analysis.flushed import flushed_in
from ampmon_server.analysis.rescaling import shift
from ampmon_server.model.case import Case, ParameterCase, ScalerCase
from ampmon_server.model.names import module_of
from ampmon_server.model.series import Floats, Ints, Totals, take
from ampmon_server.model.thresholds import Levels, Thresholds
from ampmon_server.model.words import count, percent, power_of_two


NEWEST = 16
"""Number of samples at the newest scale that are combined."""
LEAST = 3
"""Fewer samples than this show nothing."""

NEARLY_ALL = 0.95
"""If so many of the elements other than zeros are subnormal, the scale flushes others to zero."""

UNUSUAL = 3.0
"""An overflow this many bits below a scale that held is due to its batch: other gradients differ by less."""

ERRORS = (7.0, 33.0)
"""The error of a gradient, in multiples of the error from rounding its subnormal elements to fp16's grid.

It is larger, because gradients are rounded throughout the backward pass. Measured on three networks, scales 1 to 16.
"""
ROUNDED = FP16.min_subnormal / math.sqrt(12)
"""The standard deviation of an error that is spread evenly over one step of fp16's grid."""

FLOOR = 6e-4
"""The relative error of a gradient in fp16 whose elements are all normal."""

BITS_MAX = 24
LATE = 100
"""Updates after which a scaler has certainly reported a changed growth interval. It does so within 50."""

MEASURED_RULES = frozenset(
    {"subnormal", "subnormal_parameter", "flushed", "slow_growth", "stuck_scale"}
)
"""Rules whose findings a measurement proves or refutes, because shares of subnormal values are only a sign."""
KIND = "measured"
"""The kind of event that carries a measurement."""
CHANGED = (
    " Measured at step {step}, scale {scale}: fp16 changed the gradient of module {module} by {error}, and the whole "
    "gradient by {whole}."
)
FAILED = " A measurement at step {step} failed: {why}"

_Error: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


@dataclass(frozen=True, slots=True)
class MeasuredUnderflow:
    """Underflow of parameters on fp16's grid, in the newest samples at one scale, ``first_step`` to ``last_step``.

    ``share`` of the elements are subnormal, and ``low`` is the low end of its 95 % interval. ``histogram`` [64] and
    ``zeros`` add the samples up. ``room`` is by how many bits the scale could grow, as far as is known. ``ceiling`` is
    the lowest scale that overflowed, if that leaves less room than the largest gradient seen. ``rounding`` is the error
    from rounding the gradient to fp16's grid, divided by its norm. ``worst`` is that of the worst parameter, None if
    unknown. ``flushes`` says that nearly all elements other than zeros are subnormal, so that many zeros are flushed
    elements, as far as no change of the scale shows more.
    """

    scaler: ScalerCase
    thresholds: Thresholds
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
    worst: float | None
    flushes: bool

    def share_at(self, bits: int) -> float:
        """Estimate the share of subnormal elements at ``2^bits`` times the scale. Flushed elements stay zeros."""
        return _subnormal_at(self.histogram, bits) * (1 - self.zero)

    @property
    def zero(self) -> float:
        """The share of zeros."""
        return self.zeros / max(int(self.histogram.sum()) + self.zeros, 1)

    def severity(self, levels: Levels) -> Severity | None:
        """The severity of the share: a notice if harmless. If the scale ``flushes``, at least a warning."""
        found = levels.severity(self.low)
        if self.flushes:
            # Large elements may hide flushed ones in an error, and Adam gives each element a step of its own.
            return found or ("warning" if levels.warning else None)
        return found and ("notice" if self.is_harmless else found)

    @property
    def bits_to_cure(self) -> int | None:
        """By how many bits the scale must grow to end the warning. None if there is no room for that."""
        tried = range(1, min(int(self.room), BITS_MAX) + 1)
        return next((bits for bits in tried if self._is_cured_by(bits)), None)

    def _is_cured_by(self, bits: int) -> bool:
        """Whether ``2^bits`` times the scale ends the warning."""
        flushes = self.flushes and _subnormal_at(self.histogram, bits) >= NEARLY_ALL
        return not flushes and self.share_at(bits) < (self.thresholds.subnormal.warning or 0.0)

    @property
    def is_climbing(self) -> bool:
        """Whether growth will cure the underflow within `growth_patience` updates."""
        bits = self.bits_to_cure
        if bits is None or is_set_by_hand(self.scaler.recent):
            return False
        return updates_to_grow(self.scaler, bits) <= self.thresholds.growth_patience

    @property
    def is_harmless(self) -> bool:
        """Whether no parameter's error is larger than without underflow."""
        return self.worst is not None and ERRORS[1] * max(self.rounding, self.worst) < FLOOR

    @property
    def error(self) -> tuple[float, float]:
        """Low and high end of the gradient's relative error, by `ERRORS`, without fp16's rounding of normal numbers."""
        low, high = (min(each * self.rounding, 1.0) for each in ERRORS)
        return low, high


def underflow(scaler: ScalerCase, thresholds: Thresholds) -> MeasuredUnderflow | None:
    """Return the underflow at the newest scale, to judge by ``thresholds``. None if there are too few samples."""
    samples = scaler.samples
    of = samples.on_grid
    fine = (of.looked > 0) & (of.inf + of.nan == 0) & (of.histogram.any(1))
    if not fine.any():
        return None
    scale = float(samples.scale[np.flatnonzero(fine)[-1]])
    rows = np.flatnonzero(fine & (samples.scale == scale))[-NEWEST:]
    if len(rows) < LEAST or not scale > 0 or not math.isfinite(scale):
        return None
    chosen = take(samples, rows)
    share, low = _subnormal(chosen.on_grid)
    room, ceiling = _room(scaler, scale, float(chosen.on_grid.amax.max()))
    histogram = chosen.on_grid.histogram.sum(0)
    return MeasuredUnderflow(
        scaler,
        thresholds,
        first_step=int(chosen.step[0]),
        last_step=int(chosen.step[-1]),
        samples=len(rows),
        scale=scale,
        share=share,
        low=low,
        histogram=histogram,
        zeros=int(chosen.on_grid.zeros.sum()),
        room=room,
        ceiling=ceiling,
        rounding=_rounding(chosen.on_grid),
        worst=_worst_rounding(scaler.parameters, scale, int(chosen.step[0])),
        flushes=_subnormal_at(histogram, 0) >= NEARLY_ALL and flushed_in(samples) is None,
    )


def _subnormal_at(histogram: Ints, bits: int) -> float:
    """The subnormal share of a histogram's elements at ``2^bits`` times their scale."""
    none = np.zeros((), np.int64)
    subnormal = classify(shift(histogram, bits), none, none).subnormal
    return int(subnormal) / max(int(histogram.sum()), 1)


def _subnormal(of: Totals) -> tuple[float, float]:
    """The subnormal share of all samples together, and the low end of its 95 % interval."""
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
    """The bits by which the scale could grow, by the largest gradient seen and by skips at larger scales.

    Also the lowest scale of those skips, if they leave less room.
    """
    room, ceiling = float(headroom_bits(np.array([amax]))[0]), None
    failed = _failed(scaler)
    failed = failed[failed > scale * _held(scaler) / amax / 2**UNUSUAL]
    if len(failed):
        least = float(failed.min())
        below = math.log2(least) - math.log2(scale) - 1
        if below < room:
            room, ceiling = below, least
    return (max(room, 0.0) if newest_scale(scaler) > 0 else 0.0), ceiling


def _failed(scaler: ScalerCase) -> Floats:
    """The scales of the newest overflows, without those that no scale prevents: NaN alone, or in the forward pass."""
    no_overflow = [
        each.step
        for each in skipped_updates(scaler)
        if each.beyond_scale or each.origin == "forward"
    ]
    skipped = scaler.recent[scaler.recent["skipped"] > 0]
    failed: Floats = skipped["scale_first"][~np.isin(skipped["first"], no_overflow)]
    return failed[failed > 0]


def _held(scaler: ScalerCase) -> float:
    """The largest scaled gradient that at least `LEAST` samples reached without an overflow, or 0."""
    samples = scaler.samples
    skipped = scaler.recent["first"][scaler.recent["skipped"] > 0]
    of = take(samples.on_grid, np.flatnonzero(~np.isin(samples.step, skipped)))
    largest = np.sort(of.amax[(of.inf + of.nan == 0) & np.isfinite(of.amax)])
    return float(largest[-LEAST]) if len(largest) >= LEAST else 0.0


def _rounding(of: Totals) -> float:
    """The relative error from rounding elements below 2⁻¹⁴ to multiples of 2⁻²⁴, each by up to half of that."""
    classes = of.classes()
    small = float(classes.subnormal.sum() + classes.zero.sum())
    norm = math.sqrt(max(float(of.sum_squares.sum()), 0.0))
    return ROUNDED * math.sqrt(small) / norm if norm > 0 else 0.0


def _worst_rounding(of: ParameterCase, scale: float, since: int) -> float | None:
    """The same of the parameter for which it is the largest, in samples from step ``since`` on."""
    cells = of.cells[of.cells["first"] >= since]
    if not len(cells) or not of.names:
        return None
    share = (cells["subnormal"] + cells["zeros"]) / np.maximum(cells["looked"], 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rounding = ROUNDED * np.sqrt(share * of.numel) / (cells["norm"] * scale)
    return float(np.max(rounding, initial=0.0, where=~np.isnan(rounding)))


def updates_to_grow(scaler: ScalerCase, bits: int) -> float:
    """Return the updates until the scale has grown by ``bits``, from the growth tracker on, if none is skipped."""
    policy = scaler.policy
    if not policy.growth_factor > 1 or is_past_growth(scaler):
        return math.inf
    growths = math.ceil(bits / math.log2(policy.growth_factor))
    return max(growths * policy.growth_interval - (scaler.growth_tracker or 0), 0)


def is_past_growth(scaler: ScalerCase) -> bool:
    """Whether torch cannot grow the scale: it grows when the tracker equals the interval, not when it is past it."""
    interval = scaler.policy.growth_interval
    return interval == 0 or (scaler.growth_tracker or 0) >= interval + LATE


class _Measurement(msgspec.Struct):
    """An event's detail: errors relative to the norm of the fp32 gradient, overall and by module, or why it failed."""

    scale: Annotated[float, msgspec.Meta(gt=0, le=2.0**127)]
    error: _Error | None = None
    modules: dict[str, _Error | None] = {}
    failed: str = ""


def measured(finding: Finding, case: Case) -> Finding:
    """Return the finding with its scaler's newest measurement, if any, in words and as evidence."""
    found = (each for each in case.events if each.kind == KIND and each.scaler == finding.scaler)
    event = next(found, None)
    if finding.rule not in MEASURED_RULES or event is None:
        return finding
    try:
        measurement = msgspec.convert(event.detail, _Measurement)
    except msgspec.ValidationError:  # an event may hold anything
        return finding
    errors = {name: error for name, error in measurement.modules.items() if error is not None}
    step = count(event.step or 0)
    if measurement.error is None or not errors:
        words, evidence = FAILED.format(step=step, why=measurement.failed), {}
    else:
        named = [name for each in finding.parameters if (name := module_of(each)) in errors]
        module = named[0] if named else max(errors, key=errors.__getitem__)
        words = CHANGED.format(
            step=step,
            scale=power_of_two(measurement.scale),
            module=module,
            error=percent(errors[module]),
            whole=percent(measurement.error),
        )
        evidence = {"measured_error": errors[module], "measured_error_of_all": measurement.error}
    return msgspec.structs.replace(
        finding, explanation=finding.explanation + words, evidence=finding.evidence | evidence
    )
