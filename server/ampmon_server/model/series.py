"""A run's series as arrays: what the store reads and figures draw. Pure: arrays in, arrays out.

Rows are in order of step; where attempts overlay one another, only the later attempt's row is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon.numerics import sampling_error
from ampmon.numerics.histogram import BINS, SMALL, Classes, Statistics, classify


Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

EVENTS = ("steady", "grow", "grow_capped", "backoff", "manual_set", "dead")
"""An update's event is stored and passed on as its index here. Append only."""


@dataclass(frozen=True, slots=True)
class UserSteps:
    """The user's own step (`ampmon.log(..., step=)`) of a scaler's updates: a line through p points, p at least 1.

    ``step`` [p] rises from each point to the next, ``user`` [p] does not fall. Beyond both ends the line goes on as
    steeply as it is on the whole, or one by one where there is a single point.
    """

    step: Ints
    user: Ints

    def forth(self, steps: Ints) -> Floats:
        """The user's step at each of ``steps``."""
        inside = np.interp(steps, self.step, self.user)
        beyond = np.minimum(steps - self.step[0], 0) + np.maximum(steps - self.step[-1], 0)
        return np.asarray(inside + beyond * self._slope, np.float64)

    def back(self, user: int) -> int:
        """The first step whose user's step is ``user`` or more; at least 0."""
        low, high = 0, 2**53
        while low < high:
            middle = (low + high) // 2
            if self.forth(np.array([middle]))[0] < user:
                low = middle + 1
            else:
                high = middle
        return low

    @property
    def _slope(self) -> float:
        """User's steps a step."""
        if len(self.step) < 2:
            return 1.0
        rise = float(self.user[-1] - self.user[0]) / float(self.step[-1] - self.step[0])
        return max(rise, 1e-6)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A start whose scaler began from its own scale, at ``step``, where the one before had left another."""

    step: int
    time: int
    before: float
    scale: float


@dataclass(frozen=True, slots=True)
class Resume:
    """A start of a process that went on with a run at ``step``, and the scale that its scaler began with.

    ``before`` is what the start before had left, None where that is not known; ``restored`` whether state was loaded.
    """

    step: int
    time: int
    before: float | None
    scale: float
    restored: bool

    @property
    def forgotten(self) -> Forgotten | None:
        """What was lost, where its scaler began from its own scale."""
        if self.restored or self.before is None or self.before == self.scale:
            return None
        return Forgotten(self.step, self.time, self.before, self.scale)


@dataclass(frozen=True, slots=True)
class RankRows:
    """A rank's rows at some of the ``steps`` [p] at which ranks are compared, as cells of one in order of step.

    ``of`` is how many ranks there are, compared or not.
    """

    rank: int
    of: int
    steps: Ints
    rows: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over parameters at each of m sampled updates: ``histogram`` is [m, 64], ``variance`` [m, 3], the rest [m].

    Counts are estimates of what all ``elements`` have, from those ``looked`` at; ``variance`` is that of the counts of
    zero, below-grid and subnormal elements, 0 where every element was looked at. ``grain`` is the most elements that
    one run looked at stands for, as `ampmon.numerics.sampling_error.grain` counts them. ``amax`` is the largest
    that was looked at.
    """

    parameters: Ints
    elements: Ints
    looked: Ints
    zeros: Ints
    inf: Ints
    nan: Ints
    amax: Floats
    sum_squares: Floats
    histogram: Ints
    variance: Floats
    grain: Floats

    def classes(self) -> Classes:
        return classify(self.histogram, zeros=self.zeros, not_finite=self.inf + self.nan)

    def shares(self) -> Floats:
        """The shares of zero, below-grid and subnormal elements, [m, 3]."""
        classes = self.classes()
        return np.asarray(classes.small / np.maximum(classes.total, 1)[:, None], np.float64)

    def interval(self) -> tuple[Floats, Floats]:
        """The 95 % interval of each of `shares`, low and high, [m, 3]; both the share where all was looked at."""
        return sampling_error.interval(self.shares(), *self._known())

    def errors(self) -> Floats:
        """The standard error of each of `shares`, [m, 3]; 0 where every element was looked at."""
        return sampling_error.standard_error(self.shares(), *self._known())

    def _known(self) -> tuple[Floats, Floats]:
        all_of = np.maximum(self.elements, 1).astype(np.float64)[:, None]
        return self.variance / all_of**2, self.grain[:, None] / all_of


@dataclass(frozen=True, slots=True)
class GradientSeries:
    """Scaled gradients at m sampled updates: of the parameters on fp16's grid, and of the others.

    ``exact`` says whether every element was looked at.
    """

    step: Ints
    time: Ints
    scale: Floats
    on_grid: Totals
    off_grid: Totals
    exact: bool = True

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True)
class ParameterSample:
    """One parameter's scaled gradient at one sampled update, shards added up: ``statistics`` are [1].

    They are of the elements that were looked at, of so many ``elements``.
    """

    step: int
    time: int
    scale: float
    elements: int
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class ModuleSample:
    """What went through n modules at one sampled update, in the order in which the forward pass left them.

    ``statistics`` are those of the fp16 gradients, still scaled, that came back to what a module put out, of
    ``elements`` [n] elements; none where no such gradient did. ``forward`` [n] is the largest magnitude put out.
    ``left_out`` are the names of modules that are not looked into. ``ranks`` are those whose shards are in it.
    """

    step: int
    time: int
    scale: float
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    elements: Ints
    statistics: Statistics
    forward: Floats
    left_out: tuple[str, ...] = ()
    ranks: tuple[int, ...] = (0,)

    def __len__(self) -> int:
        return len(self.names)


def take(series: Totals, rows: npt.NDArray[Any]) -> Totals:
    """The rows that a boolean mask or an index array picks."""
    return Totals(*(getattr(series, field.name)[rows] for field in fields(series)))


def take_samples(series: GradientSeries, rows: npt.NDArray[Any]) -> GradientSeries:
    """The sampled updates that a boolean mask or an index array picks."""
    return GradientSeries(
        series.step[rows],
        series.time[rows],
        series.scale[rows],
        take(series.on_grid, rows),
        take(series.off_grid, rows),
        series.exact,
    )


def join_samples(parts: Sequence[GradientSeries]) -> GradientSeries:
    """One series of several, of at least one, whose steps follow one another."""

    def together(of: Sequence[Any], name: str) -> Any:
        return np.concatenate([getattr(each, name) for each in of])

    def totals(of: Sequence[Totals]) -> Totals:
        return Totals(*(together(of, each.name) for each in fields(Totals)))

    return GradientSeries(
        together(parts, "step"),
        together(parts, "time"),
        together(parts, "scale"),
        totals([part.on_grid for part in parts]),
        totals([part.off_grid for part in parts]),
        all(part.exact for part in parts),
    )


def combine_shards(shards: Sequence[GradientSeries]) -> GradientSeries:
    """One series from those of the ranks that each hold a shard: counts and squares add up, amax is the largest.

    Only updates that every rank sampled can be added up; the others are left out.
    """
    if len(shards) == 1:
        return shards[0]
    steps = shards[0].step
    for shard in shards[1:]:
        steps = np.intersect1d(steps, shard.step)
    aligned = [take_samples(shard, np.searchsorted(shard.step, steps)) for shard in shards]
    return GradientSeries(
        steps,
        aligned[0].time,
        aligned[0].scale,
        _add([shard.on_grid for shard in aligned]),
        _add([shard.off_grid for shard in aligned]),
        all(shard.exact for shard in aligned),
    )


def _add(totals: Sequence[Totals]) -> Totals:
    columns = {}
    for field in fields(Totals):
        stacked = np.stack([getattr(total, field.name) for total in totals])
        columns[field.name] = (
            stacked.max(0) if field.name in {"amax", "parameters", "grain"} else stacked.sum(0)
        )
    return Totals(**columns)


def empty_gradients() -> GradientSeries:
    zero = np.zeros(0, np.int64)
    real, small = zero.astype(float), np.zeros((0, SMALL))
    bins = np.zeros((0, BINS), np.int64)
    none = Totals(zero, zero, zero, zero, zero, zero, real, real, bins, small, real)
    return GradientSeries(zero, zero, zero.astype(float), none, none)
