"""A recorded run for replays: stretches of updates at one scale, and samples of its gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ampmon.numerics.formats import FP32
from ampmon.numerics.histogram import headroom_bits
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import Flags, Floats, GradientSeries, Ints, take


SAME = 1e-6
"""Levels (log2 of a scale) this close are equal."""

SPANS = 8
"""Stretches end at the borders of this many parts of the history, because trainings change."""

STRETCHES_MAX = 10_000
"""If there are more stretches, only the newest of them are kept."""

UPDATES_MAX = 200_000
"""Maximum number of newest updates that are replayed."""


@dataclass(frozen=True)
class History:
    """A scaler's updates from step ``first`` to ``last`` as s stretches in order. ``updates`` counts all it ever did.

    A stretch has ``length`` [s] updates at the scale 2^``level`` [s]. Only its last update, at ``step`` [s], may have
    been ``skipped`` [s]. ``nan`` [s] marks skips for NaN without inf. ``sample_at`` [m] are the places of ``samples``
    among these updates, from 0. ``policy`` is the one that the run was recorded under. Of a whole run, its `init_scale`
    is the scale of the first update. ``tracker`` is the growth tracker before the first update.
    """

    first: int
    last: int
    updates: int
    policy: ScalePolicy
    level: Floats
    length: Ints
    skipped: Flags
    nan: Flags
    step: Ints
    samples: GradientSeries
    sample_at: Ints
    tracker: int = 0

    @classmethod
    def of(
        cls,
        steps: Ints,
        scales: Floats,
        skipped: Flags,
        nan: Flags,
        *,
        policy: ScalePolicy,
        samples: GradientSeries,
        updates: int | None = None,
        tracker: int = 0,
    ) -> History:
        """Build from n >= 1 single updates. A scale that is not a positive fp32 number takes the value before it."""
        updates = len(steps) if updates is None else updates
        level = _held(scales)
        ends = np.flatnonzero((np.diff(level) != 0) | skipped[:-1])
        if len(ends) > STRETCHES_MAX:
            newest = slice(int(ends[-STRETCHES_MAX]) + 1, None)
            return cls.of(
                steps[newest],
                scales[newest],
                skipped[newest],
                nan[newest],
                policy=policy,
                samples=take(samples, samples.step >= steps[newest][0]),
                updates=updates,
            )
        spans = np.arange(1, SPANS + 1) * len(steps) // SPANS - 1
        ends = np.union1d(ends, spans[spans >= 0])
        if updates == len(steps):
            # A scaler that was resumed with its state reports the scale of the resume.
            policy = replace(policy, init_scale=scale_of(level[0]))
        return cls(
            first=int(steps[0]),
            last=int(steps[-1]),
            updates=updates,
            policy=policy,
            level=level[ends],
            length=np.diff(ends, prepend=-1),
            skipped=skipped[ends],
            nan=(nan & skipped)[ends],
            step=steps[ends],
            samples=samples,
            sample_at=np.searchsorted(steps, samples.step).astype(np.int64),
            tracker=tracker,
        )

    @classmethod
    def of_case(cls, scaler: ScalerCase) -> History | None:
        """Build from the newest updates of a case. None if there are none, or if they are not stored one by one."""
        cells = scaler.recent
        if not len(cells) or (cells["n"] > 1).any():
            return None
        beyond_scale = [each.step for each in scaler.skips if each.beyond_scale]
        return cls.of(
            cells["first"],
            cells["scale_first"],
            cells["skipped"] > 0,
            np.isin(cells["first"], beyond_scale),
            policy=scaler.policy,
            samples=take(scaler.samples, scaler.samples.step >= cells["first"][0]),
            updates=int(scaler.updates["n"].sum()),
        )

    @property
    def replayed(self) -> int:
        """The number of updates in this history."""
        return int(self.length.sum())

    @property
    def skips(self) -> int:
        return int(self.skipped.sum())

    @property
    def is_whole(self) -> bool:
        """Whether the history begins with the scaler's first update."""
        return self.replayed == self.updates

    @cached_property
    def ends(self) -> Ints:
        """The place after the last update of each stretch, [s]."""
        return np.asarray(np.cumsum(self.length), np.int64)

    def stretch_of(self, places: Ints) -> Ints:
        """Return the stretch of the updates at some places. Places past the end are in the last one."""
        stretch = np.searchsorted(self.ends, places, side="right")
        return np.minimum(stretch, len(self.ends) - 1)

    @cached_property
    def levels(self) -> tuple[Floats, Ints]:
        """All levels in ascending order, and the place of each stretch's level among them, [s]."""
        levels, place = np.unique(np.round(self.level / SAME) * SAME, return_inverse=True)
        return levels, place

    def places(self, first: int, last: int, most: int) -> Ints:
        """Return at most ``most`` places of updates, evenly spaced, between two steps as far as the history reaches."""
        ends = np.interp([first, last], *self._known[::-1])
        low, high = int(np.ceil(ends[0])), int(np.floor(ends[1]))
        return np.unique(np.linspace(low, max(low, high), most).astype(np.int64))

    def steps_at(self, places: Ints) -> Ints:
        """Return the steps of the updates at some places. They are approximate next to missing records."""
        return np.round(np.interp(places, *self._known)).astype(np.int64)

    @property
    def _known(self) -> tuple[Ints, Ints]:
        """Places of updates with known steps, and those steps."""
        return np.append(0, self.ends - 1), np.append(self.first, self.step)

    @cached_property
    def hopeless(self) -> Flags:
        """The skips that no scale would have prevented, [s]: for NaN, at a scale below all that overflowed.

        At larger scales a NaN may come from two infinities, so its cause is unknown.
        """
        overflows = self.level[self.skipped & ~self.nan]
        return np.asarray(self.nan & (self.level < overflows.min(initial=np.inf)), np.bool_)

    @cached_property
    def surely(self) -> Floats:
        """The level from which on each sampled update certainly overflows, [m], by its largest gradient from fp16.

        It may overflow far below that. Activation gradients are often larger, and a sample of the elements may miss
        the largest. Gradients computed in fp32 may be larger than fp16's largest number, such as that of a temperature.
        """
        largest, in_fp32 = self.samples.on_grid.amax, self.samples.off_grid.amax
        largest = np.where(np.isfinite(in_fp32), largest, np.inf)
        room = headroom_bits(np.where(np.isfinite(largest), largest, np.inf))
        with np.errstate(divide="ignore", invalid="ignore"):
            # An infinite gradient overflowed at its own scale.
            found = np.log2(self.samples.scale) + np.where(np.isneginf(room), 0.0, room)
        return np.where(found > -np.inf, found, np.inf)  # a dead scale says nothing


def scale_of(level: float) -> float:
    """Return the fp32 number whose log2 is ``level``."""
    return float(np.float32(2.0**level))


def _held(scales: Floats) -> Floats:
    """log2 of the scales. One that is not a positive fp32 number takes the value before it."""
    usable = (scales > 0) & (scales <= FP32.max)
    if not usable.any():
        return np.zeros(len(scales))
    held = np.maximum.accumulate(np.where(usable, np.arange(len(scales)), -1))
    held[held < 0] = np.flatnonzero(usable)[0]
    return np.asarray(np.log2(scales[held]), np.float64)
