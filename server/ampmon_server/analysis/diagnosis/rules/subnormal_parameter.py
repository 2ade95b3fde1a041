"""Single parameters whose gradients are too small for fp16, while those of all others are not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ampmon.numerics import sampling_error
from ampmon.numerics.histogram import ON_GRID_SHARE, RUN
from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.rules.each import each_scaler
from ampmon_server.model.case import ParameterCase, ScalerCase
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import percent, plural


EXPLANATION = (
    "Most values of these gradients are below 2⁻¹⁴, where fp16 has only some of its significant bits, while those of "
    "the other parameters are large enough. The scale is one for all of them, so it cannot help this one alone: the "
    "layer learns from rounded gradients, or from zeros."
)
FIX = (
    'with torch.autocast("cuda", enabled=False):  # in forward(), around {where}\n'
    "    out = layer(x.float())\n"
    "# or give its output a larger factor, and its weights a smaller one"
)
NEWEST = 8
"""So many cells of samples are taken together."""
LEAST = 256
"""Of fewer elements looked at nothing is said."""
NAMED = 8


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Iterator[Finding]:
    """A warning, where the rest of the model is without one.

    Biases are left out: those before a normalisation have a gradient of 0 by nature, of which rounding leaves noise.
    """
    level = thresholds.subnormal_of_parameter
    cells = scaler.parameters.cells[-NEWEST:]
    if not len(cells) or not scaler.parameters.names:
        return
    looked, small, on_grid = (_sum(cells[name]) for name in ("looked", "subnormal", "on_grid"))
    judged = (on_grid >= ON_GRID_SHARE * looked) & (looked > 0)
    share = small / np.maximum(looked, 1)
    low = _at_least(share, looked, scaler.parameters.numel * int(cells["n"].sum()))
    found = [
        place
        for place in np.flatnonzero(judged & (looked >= LEAST)).tolist()
        if level.severity(low[place]) and not scaler.parameters.names[place].endswith("bias")
    ]
    rest = judged.copy()
    rest[found] = False
    elements = _elements(scaler.parameters, looked)[rest]
    others = float((share[rest] * elements).sum() / max(elements.sum(), 1))
    if found and rest.any() and thresholds.subnormal.severity(others) is None:
        worst = sorted(found, key=lambda place: -share[place])
        yield _finding(scaler, worst, share, others, thresholds)


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
        scaler=scaler.name,
        first_step=int(cells["first"][0]),
        last_step=int(cells["last"][-1]),
        parameters=tuple(names[:NAMED]),
        evidence={"share": float(first), "others": others, "parameters": len(worst)},
        figure="parameters",
    )


def _around(names: list[str]) -> str:
    """The module that has them all. Where only the model has, the layer of the first."""
    paths = [name.split(".")[:-1] for name in names]
    alike = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    shared = [parts[0] for parts in alike]
    return f"module {'.'.join(shared)}" if shared else f"the layer of {names[0]}"


def _sum(values: Ints) -> Ints:
    """Over the samples, [parameters]."""
    return np.asarray(values.reshape(len(values), -1).sum(0), np.int64)


def _elements(parameters: ParameterCase, looked: Ints) -> Ints:
    """How many those looked at stand for, as in the fate of the gradient, [parameters]."""
    samples = int(parameters.cells[-NEWEST:]["n"].sum())
    return sampling_error.elements_of(looked, parameters.numel, parameters.sample, samples)


def _at_least(share: Floats, looked: Ints, all_of: Ints) -> Floats:
    """The low end of each share's 95 % interval; elements that lie side by side are taken for alike."""
    grain = np.where(looked < all_of, RUN / np.maximum(looked, 1), 0.0)
    low, _ = sampling_error.interval(share, share * (1 - share) * grain, grain)
    return low
