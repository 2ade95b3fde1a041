"""Finds single parameters whose gradients are too small for fp16, while those of all others are not."""

from __future__ import annotations

import itertools

import numpy as np

from ampmon.numerics import sampling_error
from ampmon.numerics.histogram import ON_GRID_SHARE
from ampmon.numerics.sampling_error import RUN
from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.parts import LAYER_IN_FP32, each_scaler
from ampmon_server.model.aggregates.parameters import wide
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import percent, plural


EXPLANATION = (
    "Most values of these gradients are below 2⁻¹⁴, where fp16 has only some of its significand bits, while those of "
    "the other parameters are large enough. All parameters share one scale, so it cannot help this one alone: the "
    "layer learns from rounded gradients, or from zeros."
)
FIX = f"{LAYER_IN_FP32}\n# or give its output a larger factor, and its weights a smaller one"
NEWEST = 8
"""Number of newest cells of samples that are combined."""
LEAST = 256
"""Parameters with fewer elements looked at are not judged."""
NAMED = 8


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """Return a warning if the rest of the model has none.

    Biases are left out: before a normalization their true gradient is 0, and rounding leaves only noise.
    """
    level = thresholds.subnormal_of_parameter
    cells = scaler.parameters.cells[-NEWEST:]
    if not len(cells) or not scaler.parameters.names:
        return None
    looked, small, on_grid = (
        wide(cells, name).sum(0) for name in ("looked", "subnormal", "on_grid")
    )
    judged = (on_grid >= ON_GRID_SHARE * looked) & (looked > 0)
    share = small / np.maximum(looked, 1)
    of, samples = scaler.parameters, int(cells["n"].sum())
    low = _at_least(share, looked, of.numel * samples)
    found = [
        place
        for place in np.flatnonzero(judged & (looked >= LEAST)).tolist()
        if level.severity(low[place]) and not scaler.parameters.names[place].endswith("bias")
    ]
    rest = judged.copy()
    rest[found] = False
    # As in the charts, the elements looked at stand for all of their parameter.
    elements = sampling_error.elements_of(looked, of.numel, of.sample, samples)[rest]
    others = float((share[rest] * elements).sum() / max(elements.sum(), 1))
    if not found or not rest.any() or thresholds.subnormal.severity(others) is not None:
        return None
    worst = sorted(found, key=lambda place: -share[place])
    return _finding(scaler, worst, share, others, thresholds)


def _finding(
    scaler: ScalerCase, worst: list[int], share: Floats, others: float, thresholds: Thresholds
) -> Finding:
    cells = scaler.parameters.cells[-NEWEST:]
    names = [scaler.parameters.names[place] for place in worst]
    more = f" and {plural(len(worst) - 1, 'more parameter')}" if len(worst) > 1 else ""
    first = share[worst[0]]
    return Finding(
        rule="subnormal_parameter",
        severity=thresholds.subnormal_of_parameter.severity(first) or "warning",
        title=f"{percent(first)} of the gradient values of {names[0]}{more} are subnormal; "
        f"{percent(others)} of all others",
        explanation=EXPLANATION,
        fix=FIX.format(where=_around(names)),
        first_step=int(cells["first"][0]),
        last_step=int(cells["last"][-1]),
        parameters=tuple(names[:NAMED]),
        evidence={"share": float(first), "others": others, "parameters": len(worst)},
        figure="parameters",
    )


def _around(names: list[str]) -> str:
    """The innermost module that holds all of them, or the layer of the first if only the whole model does."""
    paths = [name.split(".")[:-1] for name in names]
    alike = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    shared = [parts[0] for parts in alike]
    return f"module {'.'.join(shared)}" if shared else f"the layer of {names[0]}"


def _at_least(share: Floats, looked: Ints, all_of: Ints) -> Floats:
    """The low end of each share's 95 % interval, which assumes that neighbouring elements are alike."""
    grain = np.where(looked < all_of, RUN / np.maximum(looked, 1), 0.0)
    low, _ = sampling_error.interval(share, share * (1 - share) * grain, grain)
    return low
