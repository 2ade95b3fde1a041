"""The norm of the unscaled gradient at sampled steps, as clipping would measure it in training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ampmon_server.charts.parts.chart import chart, why_no_samples
from ampmon_server.charts.parts.layout import Figure, figure, log_axis, y_axis
from ampmon_server.charts.parts.samples import COLUMN_PIXELS, scales
from ampmon_server.charts.parts.traces import CROSS, Trace, band, broken, dotted, markers
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.aggregates.merging import aligned_span, starts_of
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, digits_of, plural, steps


@dataclass(frozen=True, slots=True)
class Norms:
    """Columns of samples [c]: where each begins, the root of its mean square norm, and the bounds of its norms.

    The norms are NaN if none of a column is finite. ``lost`` counts samples whose norm is not finite. ``first`` and
    ``last`` are a column's steps. Unless all are ``single``, some samples are merged in one cell, and one that is not
    finite makes the whole cell lost.
    """

    x: Ints | Floats
    first: Ints
    last: Ints
    middle: Floats
    low: Floats
    high: Floats
    samples: Ints
    lost: Ints
    single: bool

    @property
    def not_finite(self) -> str:
        """What to call the ``lost`` samples."""
        return "not finite" if self.single else "not finite, or merged with one that is not"


@chart(
    title="Gradient norm",
    order=120,
    tab="gradients",
    choices=("rank",),
    sampled=True,
    definitions={
        "gradient norm": "The square root of the sum of squares over all elements, divided by the loss scale: what "
        "clip_grad_norm_ measures after unscale_. Shards of a sharded model add up, replicas do not.",
        "band": "The smallest and the largest norm in a column of several samples. Of samples merged into one cell, "
        "only the mean square and the range of scales are known.",
        "not finite": "A sample in which some element was inf or NaN: it has no norm, and the step was skipped.",
    },
)
def norm(window: Window) -> Figure | str:
    """Draw a step for each pixel column on a log axis, with a band from the least to the greatest norm of each."""
    if not len(window.gradients):
        return why_no_samples(window)
    norms = _norms(window)
    traces = [*_traces(norms, window), *_marks(norms, window)]
    return figure(traces, window, height=176, caption=_caption(norms), yaxis=_axis(norms))


def _norms(window: Window) -> Norms:
    cells = window.gradients
    # A sample may have elements on both sides, on either one, or none at all.
    samples = np.minimum(cells["on_samples"] + cells["off_samples"], cells["n"])
    least, most = scales(cells, window)
    with np.errstate(all="ignore"):
        root = np.sqrt((cells["on_sum_squares"] + cells["off_sum_squares"]) / samples)
        low, high = root / most, root / least
    fine = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(fine, low, np.nan), np.where(fine, high, np.nan)
    span = aligned_span(window.low, window.high, window.view.columns // COLUMN_PIXELS)
    x = window.x.at(cells, "first")
    starts = starts_of(np.floor_divide(x, span).astype(np.int64))
    known = np.add.reduceat(np.where(fine, samples, 0), starts)
    # At several scales the norm lies between ``low`` and ``high``: take their geometric mean.
    squares = np.add.reduceat(np.where(fine, low * high * samples, 0.0), starts)
    return Norms(
        x[starts],
        cells["first"][starts],
        np.maximum.reduceat(cells["last"], starts),
        np.where(known > 0, np.sqrt(squares / np.maximum(known, 1)), np.nan),
        np.fmin.reduceat(low, starts),
        np.fmax.reduceat(high, starts),
        np.add.reduceat(samples, starts),
        np.add.reduceat(np.where(fine, 0, samples), starts),
        bool((samples <= 1).all()),
    )


def _traces(norms: Norms, window: Window) -> list[Trace]:
    x = np.append(norms.x, max(window.high, norms.x[-1]))
    middle, said = np.append(norms.middle, norms.middle[-1]), _said(norms)
    style: Trace = {
        "name": "gradient norm",
        **dotted(len(x)),
        "line": {"shape": "hv", "color": "role:accent", "width": 1.5},
        "hoverinfo": "text",
    }
    points = broken(x, window.gaps, held=True)
    line = points.line(np.where(middle <= 0, np.nan, middle), window, [*said, said[-1]], **style)
    if not (norms.high > norms.low).any():
        return [line]
    low = np.where(norms.low > 0, norms.low, norms.middle)
    fill: Trace = {"name": "least to greatest", "fillcolor": "role:accent", "opacity": 0.2}
    return [band(*window.held(norms.x), low, norms.high, window, **fill), line]


def _said(norms: Norms) -> list[str]:
    columns = (norms.first.tolist(), norms.last.tolist(), norms.middle, norms.low, norms.high)
    return [
        f"{steps(first, last)}: {digits_of(middle)}"
        + (f"<br>between {digits_of(low)} and {digits_of(high)}" if high > low else "")
        for first, last, middle, low, high in zip(*columns, strict=True)
    ]


def _marks(norms: Norms, window: Window) -> list[Trace]:
    """Draw a cross at the top of each column that has a sample without a norm."""
    lost = np.flatnonzero(norms.lost)
    if not len(lost):
        return []
    top = float(np.nanmax(norms.high)) if np.isfinite(norms.high).any() else 1.0
    said = [
        f"{steps(int(norms.first[at]), int(norms.last[at]))}: "
        f"{count(int(norms.lost[at]))} of {plural(int(norms.samples[at]), 'sample')} {norms.not_finite}"
        for at in lost
    ]
    # A log axis does not show 0.
    x, y = window.plot(norms.x[lost]), [top or 1.0] * len(lost)
    return [markers("not finite", x, y, said, CROSS, cliponaxis=False)]


def _axis(norms: Norms) -> dict[str, Any]:
    drawn = np.concatenate([norms.low, norms.high])
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    if not len(drawn):
        return y_axis(type="log", range=[-1, 1])
    return log_axis(math.log10(drawn.min()), math.log10(drawn.max()), partial(digits_of, digits=3))


def _caption(norms: Norms) -> str:
    samples, lost = int(norms.samples.sum()), int(norms.lost.sum())
    of = plural(samples, "sample")
    gone = f" {count(lost)} of them {norms.not_finite} (crosses)." if lost else ""
    if not np.isfinite(norms.middle).any():
        return f"{of}.{gone}"
    newest = int(np.where(np.isfinite(norms.middle), norms.last, -1).argmax())
    low, high = np.nanmin(norms.low), np.nanmax(norms.high)
    zeros = int((norms.middle == 0).sum())
    none = f" In {plural(zeros, 'column')} it is 0, which a log axis cannot show." if zeros else ""
    where = "at the newest" if norms.samples[newest] == 1 else "in the newest column"
    within = "" if norms.single else "within "
    among = f" {where}; {within}{digits_of(low)} to {digits_of(high)}" if samples > 1 else ""
    said = f"{digits_of(norms.middle[newest])}{among} in {of}.{gone}{none}"
    return said if norms.single else f"Means of neighbouring samples: {said}"
