"""Finds one parameter that is repeatedly the first to overflow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.ledger import UNSCALED, skipped_updates
from ampmon_server.analysis.diagnosis.outliers import (
    FAR,
    LARGE,
    culprits_of,
    loss_at,
    outlier_skips,
    period_of,
)
from ampmon_server.analysis.diagnosis.rules.parts import LAYER_IN_FP32, each_scaler
from ampmon_server.analysis.diagnosis.updates import calibrated_from, follows_growth, newest_scale
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.names import module_of, training_loss
from ampmon_server.model.series import Ints
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count


EXPLANATION = (
    "Gradients are computed from the loss backwards; {parameter} is the first with inf or NaN, and all gradients "
    "computed before it are finite. The overflow is in this layer or in the one that follows it in the forward pass. "
    "The loss scale has to be small enough for it, which leaves less room for the small gradients of all others."
)
PERIOD = " The skips are {period} steps apart, or a multiple: check what the training does every {period} steps."
HEAVY = " If a loss is far larger in these steps, it is the cause, and another layer overflows after the fix."
UNLOGGED = " To tell, log each loss with ampmon.log()."
RECURRING = 3
MOST = 0.6
"""Least share of the skips in which not every parameter is a culprit."""


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a notice, which takes the severity of what it explains.

    If every parameter usually overflows, the first is no culprit. Nor is it at a scale that has grown too far, or at a
    loss that is too large: some layer is always the first there.
    """
    cells = scaler.recent
    grown = follows_growth(cells, scaler.policy, outlier_skips(cells, scaler.logged))
    tries = {*cells["skip_first"][grown & (cells["skipped"] > 0)].tolist()}
    first, fitted = int(cells["first"][0]), calibrated_from(scaler)
    known = [
        each
        for each in skipped_updates(scaler)
        if each.first and each.step >= first and each.step not in tries
        # While a scale that is too large is searched down, any layer overflows. At 1 it is no longer too large.
        if each.step >= fitted or each.scale <= UNSCALED
    ]
    steps = np.array([each.step for each in known])
    found = culprits_of(scaler, steps)
    parameter, times = found.first, found.times
    some = found.known - found.everywhere
    recurs = times >= RECURRING and times >= MOST * some and 2 * times > found.known
    if parameter is None or not recurs or _is_heavy(scaler, steps):
        return None
    return Finding(
        rule="culprit_layer",
        severity="notice",
        title=f"{parameter} is the first to overflow in {count(times)} of {count(len(known))} skips",
        explanation=EXPLANATION.format(parameter=parameter)
        + "".join(_doubts(steps, is_logged=training_loss(scaler.logged) is not None)),
        fix=LAYER_IN_FP32.format(where=f"the layer of {parameter}"),
        first_step=known[0].step,
        last_step=int(cells["last"][-1]),
        parameters=(parameter,),
        evidence={"skipped": times, "known": len(known)},
        figure="skips",
    )


def _doubts(steps: Ints, *, is_logged: bool) -> Iterator[str]:
    """Why the layer may not be the cause. A training with several losses may log only one."""
    if period := period_of(np.sort(steps)):
        yield PERIOD.format(period=count(period))
    if period or not is_logged:
        yield HEAVY
    if not is_logged:
        yield UNLOGGED


def _is_heavy(scaler: ScalerCase, steps: Ints) -> bool:
    """Whether the logged loss keeps the scale below 1, has risen, or was far from the usual one at most of these skips.

    A layer that overflows by itself, at a loss that it makes large, is the same one at any scale.
    """
    loss = loss_at(scaler, steps)
    if loss is None:
        return False
    if loss.newest > LARGE and newest_scale(scaler) < UNSCALED:
        return True
    if 2 * loss.heavy <= len(steps):
        return loss.has_risen
    # A skip lists only its first culprits. The number of the others tells such skips apart.
    overflowed = {
        (
            frozenset(module_of(culprit.parameter) for culprit in each.culprits),
            each.culprit_parameters - len(each.culprits),
        )
        for each in scaler.skips
        if each.step in steps
    }
    return loss.ratio >= FAR and len(overflowed) > 1
