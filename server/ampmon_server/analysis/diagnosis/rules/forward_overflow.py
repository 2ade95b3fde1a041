"""Finds overflow in the forward pass: the loss was not finite before it was scaled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.ledger import SkippedUpdate, of_origin
from ampmon_server.analysis.diagnosis.outliers import norms
from ampmon_server.analysis.diagnosis.rules.parts import GO_BACK, LAYER_IN_FP32, each_scaler
from ampmon_server.analysis.diagnosis.updates import DEAD_SCALE, streaks
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, plural


EXPLANATION = (
    "In the forward pass, {module} was the first whose output was not finite, although its input was. The loss scale "
    "has no effect there. fp16 cannot hold values above 65\u202f504, such as a square or a sum of activations, or an "
    "input that is not normalised. Compute that module in fp32. If its output is not finite in fp32 either, look for "
    "0/0, a logarithm of 0, a softmax over -inf only, or weights that are not finite."
)
ENDLESS = (
    "In the forward pass, the output of {module} was the first that was not finite, and every step since step {step} "
    "was skipped. A single batch cannot cause that: the weights, or the data of every batch, have left the range of "
    "fp16."
)
WEIGHTS = " So fp32 in one module does not help. The likely cause is the learning rate."
CALM = (
    " The gradient norm of the steps before was normal, so the weights did not grow step by step: check what changed "
    "at that step in the data and the learning rate. If nothing did, compute that module in fp32. Skipped steps leave "
    "the weights as they were."
)
UNCHANGED = "# If neither the data nor the learning rate changed at step {first}:\n"
SOME = "a module"
RAISED = 2.0
"""Weights that leave the range of fp16 have gradients at least this many times as large as before."""
LONG = 40
"""Fewer updates than this are too few to compare the newest gradients with."""
NEWEST = 2


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a warning, or a critical finding if it happens twice within `nan_window` updates."""
    found, module = of_origin(scaler, "forward")
    if not found:
        return None
    often = any(
        later.step - earlier.step < thresholds.nan_window
        for earlier, later in itertools.pairwise(found)
    )
    where, module = _where(found, module)
    named = f"module {module}" if module else SOME
    explanation, fix = _cure(scaler, _endless(scaler, thresholds), named)
    return Finding(
        rule="forward_overflow",
        severity="critical" if often else "warning",
        title=f"{plural(len(found), 'skip')} began in the forward pass{where}: changing the loss scale won't help",
        explanation=explanation,
        fix=fix,
        first_step=found[0].step,
        last_step=found[-1].step,
        parameters=(module,) if module else (),
        evidence={"skipped": len(found)},
        figure="skips",
    )


def _cure(scaler: ScalerCase, end: int | None, named: str) -> tuple[str, str]:
    """The explanation and the fix. ``end`` is the step since which every update is skipped, if there is one."""
    if not end:
        return EXPLANATION.format(module=named), LAYER_IN_FP32.format(where=named)
    endless = ENDLESS.format(module=named, step=count(end))
    # Attention logits may leave fp16 at one step although no weight grew: fp32 cures that.
    if _was_calm(scaler, end):
        unchanged = UNCHANGED.format(first=count(end))
        return endless + CALM, unchanged + LAYER_IN_FP32.format(where=named)
    return endless + WEIGHTS, GO_BACK.format(first=end)


def _was_calm(scaler: ScalerCase, end: int) -> bool:
    """Whether enough samples before this step tell that the newest gradients were as large as the others."""
    before, norm = scaler.samples.step < end, norms(scaler.samples)
    known = norm[before & np.isfinite(norm) & (norm > 0)]
    long = end - int(scaler.recent["first"][0]) >= LONG
    newest = known[-NEWEST:].max(initial=0)
    return long and len(known) > NEWEST and bool(newest < RAISED * np.median(known))


def _endless(scaler: ScalerCase, thresholds: Thresholds) -> int | None:
    """The step since which every update is skipped, if there were others before and many were skipped since.

    Skips that began at a dead scale do not count: it destroyed the weights.
    """
    many = thresholds.consecutive_skips.critical or math.inf
    cells = scaler.recent
    alive = {*cells["first"][cells["scale_first"] > DEAD_SCALE].tolist()} - {int(cells["first"][0])}
    return next(
        (
            each.first
            for each in streaks(cells)
            if each.ongoing and each.updates >= many and each.first in alive
        ),
        None,
    )


def _where(found: Sequence[SkippedUpdate], most: str | None) -> tuple[str, str | None]:
    """A phrase, and the module in which most of those with a module began. None if they are scattered."""
    modules = [each.module for each in found if each.module]
    at_it = modules.count(most) if most else 0
    if 2 * at_it <= len(modules):
        return f", in {count(len(set(modules)))} modules" if modules else "", None
    if at_it == len(found):
        return f", in module {most}", most
    if len(modules) == len(found):
        return f", {count(at_it)} of them in module {most}", most
    return f", {count(at_it)} of {count(len(modules))} watched ones in module {most}", most
