"""Finds a logged loss that fell, rose and stays high, with what the scale, skips and layers did there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.divergence import Divergence, divergence
from ampmon_server.analysis.diagnosis.outliers import culprits_of, norms
from ampmon_server.analysis.diagnosis.rules.each import fitted
from ampmon_server.analysis.diagnosis.rules.fixes import GO_BACK
from ampmon_server.analysis.diagnosis.updates import GROW
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.scalars import mean
from ampmon_server.model.case import Case, ScalerCase
from ampmon_server.model.names import training_loss
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


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a warning, or a critical finding once the loss is as large as at the start or not finite."""
    name = training_loss(case.logged)
    if name is None:
        return
    found = divergence(case.logged[name])
    if found is None:
        return
    scaler = next((each for each in case.scalers if len(each.recent)), None)
    # Logged values have the steps of the first scaler.
    there = "" if scaler is None else _beside(scaler, found)
    rose, fix = _cure(case.logged, found)
    finding = Finding(
        rule="diverged",
        severity="critical" if found.high >= found.start else "warning",
        title=f"The loss diverged at step {count(found.first)}: {_value(found.high)} instead of {_value(found.low)}",
        explanation=_words(name, found) + there + rose,
        fix=fix,
        first_step=found.first,
        last_step=found.last,
        evidence={"start": found.start, "low": found.low, "high": found.high},
        figure="scalars",
    )
    yield finding if scaler is None else fitted(finding, scaler)


def _words(name: str, found: Divergence) -> str:
    where = (
        f"In {steps(found.first, found.above)}"
        if found.above > found.first
        else f"At step {count(found.first)}"
    )
    return EXPLANATION.format(
        name=name,
        start=_value(found.start),
        low=_value(found.low),
        high=_value(found.high),
        where=where,
    )


def _value(loss: float) -> str:
    return magnitude_of(loss) if math.isfinite(loss) else "not finite"


def _beside(scaler: ScalerCase, found: Divergence) -> str:
    """What the scale, the skips and the layers did from shortly before the rise to its end."""
    held = scaler.recent if int(scaler.recent["first"][0]) <= found.first - NEAR else scaler.updates
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
    ratios = np.array(
        [
            _ratio(each, of.cells["first"], found)
            for each in of.cells["norm"].reshape(len(of.cells), len(of.names)).T
        ]
    )
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
