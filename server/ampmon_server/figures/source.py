"""What a figure is drawn from and how it is looked at. Owns the cutting of series to a view; knows no chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ampmon_server.series import (
    GradientSeries,
    Ints,
    ModuleSample,
    UpdateSeries,
    take,
    take_samples,
)


WIDTH_MAX = 1000
"""However wide the screen, at most this many pixel columns are drawn."""

Axis: TypeAlias = Literal["step", "time"]


@dataclass(frozen=True, slots=True)
class View:
    """Which stretch is looked at: ``start`` <= x < ``stop``, in steps, or in us since the epoch where x is time.

    None is the run's own end. ``width`` is the plot's width in pixels.
    """

    start: int | None = None
    stop: int | None = None
    width: int = WIDTH_MAX
    x: Axis = "step"

    @property
    def columns(self) -> int:
        return min(max(self.width, 100), WIDTH_MAX)

    @property
    def narrow(self) -> bool:
        """A phone's width: no room for labels beside the plot."""
        return self.width < 480

    @property
    def whole(self) -> bool:
        return self.start is None and self.stop is None


@dataclass(frozen=True, slots=True)
class Source:
    """The series of one scaler of a run, at least over the view. ``disabled``: the scaler is off, so nothing scales.

    ``modules`` is the newest sample of activations in the view, which only the chart of it is given.
    """

    updates: UpdateSeries
    gradients: GradientSeries
    disabled: bool = False
    modules: ModuleSample | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A source cut to a view, its rows in order of x; ``low`` and ``high`` are the first and last x drawn."""

    low: int
    high: int
    updates: UpdateSeries
    gradients: GradientSeries

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step of an update in the window, which must have one."""
        return int(self.updates.step.min()), int(self.updates.step.max())


def x_of(series: UpdateSeries | GradientSeries, view: View) -> Ints:
    """The x of each row: steps, or us since the epoch."""
    return series.step if view.x == "step" else series.time


def cut(source: Source, view: View) -> Window:
    """The rows of ``source`` that ``view`` shows. Copies no array where all is shown."""
    updates, gradients = _cut_updates(source.updates, view), _cut_samples(source.gradients, view)
    ends = [x_of(series, view)[[0, -1]] for series in (updates, gradients) if len(series)]
    low = view.start if view.start is not None else min((int(end[0]) for end in ends), default=0)
    high = (
        view.stop - 1 if view.stop is not None else max((int(end[1]) for end in ends), default=low)
    )
    return Window(low, max(low, high), updates, gradients)


def _cut_updates(series: UpdateSeries, view: View) -> UpdateSeries:
    x = x_of(series, view)
    if (np.diff(x) < 0).any():  # the clock was set back
        series = take(series, np.argsort(x, kind="stable"))
        x = x_of(series, view)
    return series if view.whole else take(series, _within(x, view))


def _cut_samples(series: GradientSeries, view: View) -> GradientSeries:
    x = x_of(series, view)
    if (np.diff(x) < 0).any():
        series = take_samples(series, np.argsort(x, kind="stable"))
        x = x_of(series, view)
    return series if view.whole else take_samples(series, _within(x, view))


def _within(x: Ints, view: View) -> Ints:
    first = 0 if view.start is None else int(np.searchsorted(x, view.start))
    last = len(x) if view.stop is None else int(np.searchsorted(x, view.stop))
    return np.arange(first, last)
