"""Finds a scale so small that its inverse is not finite, so that unscaling destroys the gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.explaining import BEGAN, NAN
from ampmon_server.analysis.diagnosis.ledger import skipped_updates
from ampmon_server.analysis.diagnosis.rules.parts import each_scaler
from ampmon_server.analysis.diagnosis.updates import (
    DEAD,
    DEAD_SCALE,
    is_alive,
    newest_scale,
    streaks,
)
from ampmon_server.model.case import LOST, ScalerCase
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, in_code, power_of_two, steps


EXPLANATION = (
    "At 2⁻¹²⁸ and below, 1/scale is not finite in fp32. When the scaler unscales the next finite gradients, they "
    "become inf or NaN, no check catches that, and the optimizer writes them into the weights. It takes about 144 "
    "skips in a row to get there, so also find out why every step was skipped."
)
FIX = (
    "# Go on from a checkpoint saved before step {step}, with a usable scale:\n"
    "scaler = ampmon.GradScaler(init_scale={init_scale})"
)
NOT_ONE = 65536.0


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a critical finding while the scale is dead, or a warning if it was: the weights may be destroyed since."""
    scale = newest_scale(scaler)
    now = not is_alive(scale)
    lived = _lived(scaler) if now else -1
    dead = [each for each in _dead(scaler) if each > lived]
    if not dead:
        return None
    first, last = min(dead), max(dead)
    title = (
        f"The scale has been dead since step {count(first)} ({power_of_two(scale)}): {_harm(scaler, first)}"
        if now
        else f"The scale was dead in {steps(first, last)}: weights may have been destroyed"
    )
    alive = scaler.policy.init_scale
    return Finding(
        rule="dead_scale",
        severity="critical" if now else "warning",
        title=title,
        explanation=EXPLANATION,
        fix=FIX.format(step=first, init_scale=in_code(alive if alive >= 1 else NOT_ONE)),
        first_step=first,
        last_step=last,
        evidence={"scale": scale, "dead_since": first, **_began(scaler, first)},
        figure="scale",
        stop=now,
    )


def _dead(scaler: ScalerCase) -> Iterator[int]:
    """Steps at which the scale was dead, including the first and the last of each cell."""
    for cells in (scaler.updates, scaler.recent):
        died = cells[cells["moves"][:, DEAD] > 0]
        for name in ("move_first", "move_last"):
            yield from died[name][:, DEAD].tolist()
        if len(cells) and not is_alive(float(cells["after_last"][-1])):
            yield int(cells["last"][-1])


def _began(scaler: ScalerCase, died: int) -> dict[str, str]:
    """Where most of the overflows that killed the scale began, as far as activations were sampled at them.

    If they were at none of them, the earlier skips with a loss that was not finite tell.
    """
    start = int(scaler.recent["first"][0])
    is_older = start > died  # than the newest updates
    if is_older:
        died = int(scaler.recent["last"][-1])
    falls = [each.first for each in streaks(scaler.recent) if each.first <= died <= each.last]
    start = max(start, *falls) if falls else died
    skips = [each for each in skipped_updates(scaler) if each.step <= died]
    fall = [each for each in skips if each.step >= start]
    if fall and not any(each.origin for each in fall) and all(each.loss == LOST for each in fall):
        fall = [each for each in skips if each.loss == LOST]
    # Without a module, NaN from "backward" only says that the loss was finite: it may ignore an inf in the outputs.
    sure = [
        each for each in fall if each.module or each.origin != "backward" or not each.beyond_scale
    ]
    origins = Counter(each.origin for each in sure if each.origin)
    began = origins.most_common(1)[0][0] if origins else None
    is_beyond = 2 * sum(each.beyond_scale for each in fall) > len(fall)
    if is_beyond and not is_older and began in (None, "backward"):
        began = NAN
    return {BEGAN: began} if began else {}


def _lived(scaler: ScalerCase) -> int:
    """The last step known to leave the scale alive, or -1. A scale that is dead now has been so since the next step."""
    held = (scaler.updates, scaler.recent)
    steps = [cells["last"][cells["after_last"] > DEAD_SCALE] for cells in held]
    return int(np.concatenate(steps).max(initial=-1))


def _harm(scaler: ScalerCase, since_step: int) -> str:
    after = scaler.recent[scaler.recent["first"] > since_step]
    stepped = bool((after["skipped"] < after["n"]).any())
    return (
        "weights are being destroyed"
        if stepped
        else "the next finite gradients destroy the weights"
    )
