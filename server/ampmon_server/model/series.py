"""A run's series as arrays, which the store reads and the charts draw. Pure: arrays in, arrays out.

Rows are in order of step. If several attempts have the same step, only the later attempt's row is included.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ampmon.numerics import sampling_error
from ampmon.numerics.histogram import BINS, SMALL, Classes, Statistics, classify


Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class UserSteps:
    """Maps the steps of a scaler to the user's own steps (`ampmon.log(..., step=)`): a line through p >= 1 points.

    ``step`` [p] strictly increases, and ``user`` [p] never decreases. Beyond both ends the line continues with its
    overall slope, or with slope 1 if there is a single point.
    """

    step: Ints
    user: Ints

    def forth(self, steps: Ints) -> Floats:
        """Return the user's step at each of ``steps``, interpolated."""
        inside = np.interp(steps, self.step, self.user)
        beyond = np.minimum(steps - self.step[0], 0) + np.maximum(steps - self.step[-1], 0)
        return np.asarray(inside + beyond * self._slope, np.float64)

    def back(self, user: int) -> int:
        """Return the first step, at least 0, at which the user's step is ``user`` or more."""
        return bisect_left(range(2**53), user, key=lambda step: self.forth(np.array([step]))[0])

    @property
    def _slope(self) -> float:
        if len(self.step) < 2:
            return 1.0
        rise = float(self.user[-1] - self.user[0]) / float(self.step[-1] - self.step[0])
        # Beyond a level line, `back` would find no step.
        return max(rise, 1e-6)


@dataclass(frozen=True, slots=True)
class StepClock:
    """Maps times to the steps of a scaler: a line through p >= 1 points in order of ``time`` [p].

    The step of a time is that of the last update before it. Beyond both ends it is the step of the end. Steps may fall,
    as they do after a resume at an earlier one.
    """

    time: Ints
    step: Ints

    def at(self, times: Ints) -> Ints:
        """Return the step at each of ``times``."""
        before = np.maximum(np.searchsorted(self.time, times, side="right") - 1, 0)
        found: Ints = np.floor(np.interp(times, self.time, self.step)).astype(np.int64)
        return np.maximum(found, self.step[before])  # where steps fall, the step before is held


@dataclass(frozen=True, slots=True)
class Resume:
    """A process start that resumed a run at ``step``, and the scale that its scaler began with.

    ``before`` is the scale that the earlier start left, None if unknown. ``restored`` says whether state was loaded.
    """

    step: int
    time: int
    before: float | None
    scale: float
    restored: bool

    @property
    def lost(self) -> float | None:
        """The scale before. None if state was loaded, the scale before is unknown, or both scales are equal."""
        return None if self.restored or self.before == self.scale else self.before


@dataclass(frozen=True, slots=True)
class RankRows:
    """A rank's rows at some of the ``steps`` [p] at which ranks are compared: one cell per update, in order of step.

    ``of`` is the number of all ranks, compared or not.
    """

    rank: int
    of: int
    steps: Ints
    rows: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over parameters at each of m sampled updates: ``histogram`` is [m, 64], ``variance`` [m, 3], the rest [m].

    Counts are estimates for all ``elements``, made from the number ``looked`` at. ``variance`` is that of the counts of
    zero, below-grid and subnormal elements; 0 where every element was looked at. ``grain`` is the largest number of
    elements that one sampled run of neighbours stands for, as `ampmon.numerics.sampling_error.grain` counts them.
    ``amax`` is the largest magnitude looked at.
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
        """The low and high ends of the 95 % interval of `shares`, [m, 3]. Both equal the share if all was looked at."""
        return sampling_error.interval(self.shares(), *self._known())

    def errors(self) -> Floats:
        """The standard error of each of `shares`, [m, 3]. 0 where every element was looked at."""
        return sampling_error.standard_error(self.shares(), *self._known())

    def _known(self) -> tuple[Floats, Floats]:
        all_of = np.maximum(self.elements, 1).astype(np.float64)[:, None]
        return self.variance / all_of**2, self.grain[:, None] / all_of


@dataclass(frozen=True, slots=True)
class GradientSeries:
    """Scaled gradients at m sampled updates, split into the parameters on fp16's grid and the others."""

    step: Ints
    time: Ints
    scale: Floats
    on_grid: Totals
    off_grid: Totals

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True)
class ParameterSample:
    """One parameter's scaled gradient at one sampled update, with shards added up.

    ``statistics`` [1] cover the elements looked at, out of ``elements``.
    """

    step: int
    scale: float
    elements: int
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class ModuleSample:
    """Activations of n modules at one sampled update, in the order in which the forward pass left the modules.

    ``statistics`` are of the scaled fp16 gradients with respect to each module's output, of ``elements`` [n] elements.
    They are empty if no such gradient came back. ``forward`` [n] is the largest magnitude of the output. ``left_out``
    names modules that are not inspected. ``ranks`` are the ranks whose shards are included.
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


Series = TypeVar("Series", Totals, GradientSeries)


def take(series: Series, rows: npt.NDArray[Any]) -> Series:
    """Return the sampled updates that a boolean mask or an index array picks."""
    return _made([series], lambda name, of: of[0][rows])


def join_samples(parts: Sequence[GradientSeries]) -> GradientSeries:
    """Concatenate at least one series. The steps of each follow those of the one before."""
    return _made(parts, lambda name, of: np.concatenate(of))


def combine_shards(shards: Sequence[GradientSeries]) -> GradientSeries:
    """Combine the series of ranks that each hold a shard: counts and squares add up, amax is the largest.

    Updates that not every rank sampled are left out, because they cannot be added up.
    """
    if len(shards) == 1:
        return shards[0]
    steps = shards[0].step
    for shard in shards[1:]:
        steps = np.intersect1d(steps, shard.step)
    aligned = [take(shard, np.searchsorted(shard.step, steps)) for shard in shards]
    return _made(aligned, _added)


def _added(name: str, of: Sequence[Any]) -> Any:
    if name in {"step", "time", "scale"}:
        return of[0]
    return np.max(of, 0) if name in {"amax", "parameters", "grain"} else np.sum(of, 0)


def _made(parts: Sequence[Series], how: Callable[[str, Sequence[Any]], Any]) -> Series:
    """Make one series of several: ``how`` gets the name of an array, and that array of each."""
    named = {
        field.name: [getattr(part, field.name) for part in parts] for field in fields(parts[0])
    }
    return type(parts[0])(
        **{
            name: _made(of, how) if isinstance(of[0], Totals) else how(name, of)
            for name, of in named.items()
        }
    )


def empty_gradients() -> GradientSeries:
    zero = np.zeros(0, np.int64)
    real, small = zero.astype(float), np.zeros((0, SMALL))
    bins = np.zeros((0, BINS), np.int64)
    none = Totals(zero, zero, zero, zero, zero, zero, real, real, bins, small, real)
    return GradientSeries(zero, zero, zero.astype(float), none, none)
