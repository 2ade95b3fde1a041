"""Finds a logged loss that fell, rose and stays high, with what the scale, skips and layers did there.

Noise, warm-up and cycles of the learning rate are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.outliers import culprits_of, norms, typical
from ampmon_server.analysis.diagnosis.rules.parts import GO_BACK, fitted
from ampmon_server.analysis.diagnosis.updates import GROW
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.parameters import wide
from ampmon_server.model.aggregates.scalars import mean, not_finite
from ampmon_server.model.case import Case, ScalerCase
from ampmon_server.model.names import training_loss
from ampmon_server.model.series import Flags, Floats
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, magnitude_of, plural, power_of_two, steps


EXPLANATION = (
    "The logged {name} had fallen from {start} to {low}. {where} it rose, and it has been {high} since. A loss that "
    "stays there no longer learns: more training from these weights rarely repairs it."
)
CALM = " The scale stayed at {scale}, and no step was skipped there: overflow is not the cause."
SKIPS = " {skips} skipped there, the first at step {step}{culprit}; the scale went from {before} to {after}."
GREW = " The scale had grown to {scale} at step {step}."
MOVED = " The scale went from {before} to {after}, and no step was skipped there."
NORM = " The gradient norm was {ratio} times the median before: {named} grew most."
NORMS = " The gradient norm was {ratio} times the median before."
RATE = " The logged {name} had risen from {before} to {after} there."
LOWER = (
    "# Go back to a checkpoint saved before step {first}, and to the learning rate used there:\n"
    "for group in optimizer.param_groups:  # before scaler.step(optimizer)\n"
    '    group["lr"] = min(group["lr"], {rate:.4g})'
)
NEAR = 16
"""Updates before the rise that belong to it, because their skips and growths may have caused it."""
RAISED = 2.0
"""A norm or a learning rate that is this many times what it was has risen."""

BESIDE = 4
"""The level of the loss is the median of a cell and this many on each side, so a few outliers do not move it."""
LEAST = 2 * BESIDE + 1
"""This many cells in a row are a level that stays."""
STAYS = 0.1
"""Least share of the cells that are above at the end, and that were below before."""
HALF = 0.5
"""A loss that has risen by this share of its fall has lost what it had learned."""
NOISE = 4.0
"""A fall and a rise must be larger than this many times the noise of the loss."""
ABRUPT = 0.1
"""A rise takes at most this share of the cells. Losses of adversaries and policies drift more slowly."""
FELL, ROSE = 3.0, 2.0
"""Fall and rise must be this many times the largest rise before, because cyclic learning rates keep raising a loss."""
EXPLODES = 10.0
"""A rise of this many times the fall is an explosion, even if the loss then falls to that of an untrained model."""
TAIL = 0.1
"""After the rise, all but this share of the loss must be above all but this share of the loss before."""
_MAD = 1.4826
"""A normal distribution's standard deviation divided by its median absolute deviation."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The loss was at ``low`` until step ``first``, and is at ``high`` from step ``above`` to ``last``.

    ``start`` is the loss at the start. ``high`` is infinite if the loss is no longer finite.
    """

    first: int
    above: int
    last: int
    start: float
    low: float
    high: float


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a warning, or a critical finding once the loss is as large as at the start or not finite."""
    for scaler in case.scalers:
        name = training_loss(scaler.logged)
        if name and (found := divergence(scaler.logged[name])):
            yield fitted(_finding(scaler, name, found), scaler)


def _finding(scaler: ScalerCase, name: str, found: Divergence) -> Finding:
    rose, fix = _cure(scaler.logged, found)
    return Finding(
        rule="diverged",
        severity="critical" if found.high >= found.start else "warning",
        title=f"The loss diverged at step {count(found.first)}: {_value(found.high)} instead of {_value(found.low)}",
        explanation=_words(name, found) + _beside(scaler, found) + rose,
        fix=fix,
        first_step=found.first,
        last_step=found.last,
        evidence={"start": found.start, "low": found.low, "high": found.high},
        figure="scalars",
    )


def _words(name: str, found: Divergence) -> str:
    where = (
        f"In {steps(found.first, found.above)}"
        if found.above > found.first
        else f"At step {count(found.first)}"
    )
    losses = {each: _value(getattr(found, each)) for each in ("start", "low", "high")}
    return EXPLANATION.format(name=name, where=where, **losses)


def _value(loss: float) -> str:
    return magnitude_of(loss) if math.isfinite(loss) else "not finite"


def _beside(scaler: ScalerCase, found: Divergence) -> str:
    """What the scale, the skips and the layers did from shortly before the rise to its end."""
    is_recent = len(scaler.recent) and int(scaler.recent["first"][0]) <= found.first - NEAR
    held = scaler.recent if is_recent else scaler.updates
    cells = held[(held["last"] >= found.first - NEAR) & (held["first"] <= found.above)]
    if not len(cells):
        return _norms(scaler, found)
    return _scale(scaler, cells) + _norms(scaler, found)


def _scale(scaler: ScalerCase, cells: Cells) -> str:
    before, after = float(cells["scale_first"][0]), float(cells["after_last"][-1])
    ends = {"before": power_of_two(before), "after": power_of_two(after)}
    skipped = int(cells["skipped"].sum())
    grown = cells[cells["moves"][:, GROW] > 0]
    grew = ""
    if len(grown):
        grew = GREW.format(
            scale=power_of_two(float(grown["move_after"][-1, GROW])),
            step=count(int(grown["move_last"][-1, GROW])),
        )
    if skipped:
        within = cells["skip_first"][cells["skipped"] > 0]
        first = culprits_of(scaler, within).first
        return (
            SKIPS.format(
                skips=plural(skipped, "step was", "steps were"),
                step=count(int(within[0])),
                culprit=f", {first} first to overflow" if first else "",
                **ends,
            )
            + grew
        )
    if before != after:
        return grew or MOVED.format(**ends)
    return CALM.format(scale=power_of_two(after))


def _norms(scaler: ScalerCase, found: Divergence) -> str:
    """How much the gradient grew, and in which parameter most, as far as samples reach back."""
    ratio = _ratio(norms(scaler.samples), scaler.samples.step, found)
    if not ratio >= RAISED:
        return ""
    of = scaler.parameters
    ratios = np.array([_ratio(each, of.cells["first"], found) for each in wide(of.cells, "norm").T])
    if not len(ratios) or np.isnan(ratios).all():
        return NORMS.format(ratio=magnitude_of(ratio))
    return NORM.format(ratio=magnitude_of(ratio), named=of.names[int(np.nanargmax(ratios))])


def _ratio(norm: np.ndarray, step: np.ndarray, found: Divergence) -> float:
    """The median of finite values from the rise on over that before. NaN if either is unknown."""
    known = np.isfinite(norm) & (norm > 0)
    before, after = norm[known & (step < found.first)], norm[known & (step >= found.first)]
    if not len(before) or not len(after):
        return math.nan
    return float(np.median(after) / np.median(before))


def _cure(logged: Mapping[str, Cells], found: Divergence) -> tuple[str, str]:
    """A sentence on the learning rate if it rose with the loss, and the fix."""
    go_back = "", GO_BACK.format(first=found.first)
    name = next(
        (each for each in logged if each.lower().rpartition("/")[2] in ("lr", "learning_rate")),
        None,
    )
    if name is None:
        return go_back
    cells, rates = logged[name], mean(logged[name])
    before, after = (
        rates[cells["last"] < found.first - NEAR],
        rates[(cells["first"] <= found.above) & (cells["last"] >= found.first - NEAR)],
    )
    if not len(before) or not len(after) or not np.nanmax(after) >= RAISED * before[-1]:
        return go_back
    was, is_now = float(before[-1]), float(np.nanmax(after))
    rose = RATE.format(name=name, before=magnitude_of(was), after=magnitude_of(is_now))
    return rose, LOWER.format(first=found.first, rate=was)


def divergence(cells: Cells) -> Divergence | None:
    """Return the divergence that the cells of a loss show. None while it falls, stays or is too noisy to tell."""
    values = typical(cells)
    n = len(cells)
    least = max(LEAST, int(STAYS * n))
    # A loss that is not finite from the start has never fallen.
    if n < 3 * least or not np.isfinite(values[:LEAST]).all():
        return None
    level = np.median(sliding_window_view(np.pad(values, BESIDE, mode="edge"), LEAST), axis=1)
    start = float(max(level[0], np.nan_to_num(cells["value_first"][0])))
    lowest = float(level.min())
    is_low = level < lowest + HALF * (start - lowest)
    # A loss that has exploded dips on its way to the level where it stays.
    exploded = np.maximum.accumulate(values - lowest > EXPLODES * (start - lowest))
    stays = np.convolve(sliding_window_view(is_low, LEAST).all(1), np.ones(LEAST)) > 0
    below = np.flatnonzero(is_low & (stays | ~exploded))
    above = int(below[-1]) + 1 if len(below) else n
    if n - above < least or len(below) < least:
        return None
    before, after = values[below], values[above:]
    noise = NOISE * _MAD * float(np.median(np.abs(before - level[below])))
    low, high = float(np.median(before[-LEAST:])), float(np.median(after))
    first = _left(level[:above], low + noise)
    fall, rise = float(level[0]) - lowest, high - low
    # Levels just before an explosion belong to it: medians reach into it, and noise hides its first updates.
    steady = first - LEAST if values[first:].max() - low > EXPLODES * fall else first
    calm = level[:steady]
    risen = float((calm - np.minimum.accumulate(calm)).max(initial=0.0))
    far = np.flatnonzero(level[above:] >= min(low + HALF * rise, start + fall))
    most = np.quantile(before, 1 - TAIL, method="higher")
    is_sure = fall > max(noise, FELL * risen) and rise > max(noise, ROSE * risen)
    is_abrupt = len(far) > 0 and above + int(far[0]) - first <= max(LEAST, int(ABRUPT * n))
    if not (is_sure and is_abrupt and np.quantile(after, TAIL, method="lower") > most):
        return None
    begins = _first_step(cells, first, values[first : above + 1] > low + noise)
    return Divergence(begins, int(cells["first"][above]), int(cells["last"][-1]), start, low, high)


def _first_step(cells: Cells, left: int, is_high: Flags) -> int:
    """The step of the rise. The level is high from the cell ``left`` on, but as a median it may be a cell too early.

    Values that are not finite are the last ones of the first cell with any, because such a loss stays not finite.
    """
    lost = not_finite(cells)
    first = left + int(np.argmax(is_high | (lost[left : left + len(is_high)] > 0)))
    while first and lost[first] and lost[first - 1]:
        first -= 1
    return (
        int(cells["last"][first] - lost[first]) + 1 if lost[first] else int(cells["first"][first])
    )


def _left(level: Floats, most: float) -> int:
    """The place from which on the level stays above ``most``, or the end."""
    within = np.flatnonzero(level <= most)
    return int(within[-1]) + 1 if len(within) else len(level)
