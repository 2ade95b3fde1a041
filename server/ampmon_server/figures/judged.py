"""Which gradients the charts judge: those on fp16's grid, or, where there are none, the others. Draws nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampmon_server.figures.layout import NO_USER_STEPS, nothing_here
from ampmon_server.figures.source import Source, View, Window, x_of
from ampmon_server.figures.words import count, plural
from ampmon_server.series import Ints, Totals, take, take_samples


GRID_DEFINITION = (
    "A parameter is on fp16's grid when at least 99 % of its gradient's elements are exactly fp16 numbers. "
    "The gradients of the others were made or summed in fp32 (LayerNorm, embeddings, tied weights): "
    "they are left out, for their small values say nothing about fp16."
)


@dataclass(frozen=True, slots=True)
class Judged:
    """The sampled updates [m] in a window at which there is something to judge, and the totals judged."""

    step: Ints
    x: Ints
    totals: Totals
    left_out: int
    """Parameters off the grid at the newest sample."""
    on_grid: bool
    exact: bool

    def __len__(self) -> int:
        return len(self.step)

    @property
    def newest(self) -> Totals:
        return take(self.totals, np.array([-1]))


def judge(window: Window, view: View) -> Judged | None:
    """What a window has to judge; None where no gradient was sampled in it."""
    series = window.gradients
    on_grid = bool(series.on_grid.looked.any())
    kept = np.flatnonzero((series.on_grid if on_grid else series.off_grid).looked)
    if not len(kept):
        return None
    series = take_samples(series, kept)
    return Judged(
        step=series.step,
        x=x_of(series, view, window.x.user),
        totals=series.on_grid if on_grid else series.off_grid,
        left_out=int(series.off_grid.parameters[-1]) if on_grid else 0,
        on_grid=on_grid,
        exact=series.exact,
    )


def scope(judged: Judged) -> str:
    """Whose gradients were judged, at the newest sample."""
    newest = judged.newest
    elements, looked = int(newest.elements[0]), int(newest.looked[0])
    seen = f", {count(looked)} of them looked at," if looked < elements else ""
    of = f"Of {count(elements)} elements{seen} in {plural(int(newest.parameters[0]), 'parameter')}"
    if not judged.on_grid:
        return (
            f"{of}, none of them on fp16's grid: these gradients were made or summed in fp32, "
            "so their small values say nothing about fp16."
        )
    rest = f"; {plural(judged.left_out, 'parameter')} off it left out" if judged.left_out else ""
    return f"{of} on fp16's grid{rest}."


def why_no_samples(window: Window, source: Source, view: View) -> str:
    """Why no gradient is drawn, and what to do."""
    if source.disabled:
        return "This scaler is disabled: there are no scaled gradients to look at."
    if view.x == "user" and source.user is None:
        return NO_USER_STEPS
    if len(window.gradients):
        return "The sampled gradients hold no elements. Check that the optimizer's parameters require gradients."
    return nothing_here(
        view,
        "sampled gradient",
        "No gradient sampled yet. One is at least every 200 updates, and after each change of the scale; "
        "Config(every=1) samples every update.",
    )
