"""Reads what the charts of one scaler draw: updates, samples and logged values.

Values that were logged after steps of other scalers get its steps, by their times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict
from uuid import UUID

import numpy as np

from ampmon.wire import COUNT_MAX
from ampmon_server.charts.parts.source import Axis, Source, View
from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.model.series import StepClock
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.store import ScalerSeries, Store
from ampmon_server.store.updates.logged import Name


OUTSIDE = 100
"""The number of cells read before and after the steps in view, to tell their times from those in view."""


@dataclass(frozen=True, slots=True)
class ChartRequest:
    """What a chart is to show of a run. ``stream`` is any stream of the chosen scaler; None is the run's first.

    ``logged`` is the logged value to draw, None for the first few. ``rank`` shows one rank alone. ``replay`` is a
    policy and its setting, as `ampmon_server.queries.whatif_reader.tried` takes it. If none is given, the setting is
    the one that the run's findings recommend by these ``thresholds``.
    """

    view: View = field(default_factory=View)
    stream: int | None = None
    logged: str | None = None
    replay: Mapping[str, float | str | None] = field(default_factory=dict)
    rank: int | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)


class Extent(TypedDict):
    """What to read of a scaler: a part of its run, by one of its streams."""

    stream: int | None
    start: int
    stop: int
    by: Axis


def extent_of(asked: ChartRequest, view: View) -> Extent:
    stop = COUNT_MAX + 1 if view.stop is None else view.stop
    return Extent(stream=asked.stream, start=view.start or 0, stop=stop, by=view.x)


def series_of(store: Store, run_id: UUID, asked: ChartRequest, *, sampled: bool = True) -> Source:
    """Read the updates of a scaler, and its samples."""
    return source_of(read_series(store, run_id, asked, sampled=sampled))


def read_series(
    store: Store, run_id: UUID, asked: ChartRequest, *, sampled: bool = True
) -> ScalerSeries:
    """Read the updates of a scaler, and its samples if they are drawn or may be at the ends of the x axis.

    The steps of samples are those of updates, but the clocks of ranks differ.
    """
    view = asked.view
    is_open = view.start is None or view.stop is None
    sampled = sampled or view.x == "user" or (view.x == "time" and is_open)
    return store.series(
        run_id, **extent_of(asked, view), columns=view.columns, rank=asked.rank, sampled=sampled
    )


def source_of(series: ScalerSeries) -> Source:
    return Source(
        series.updates,
        series.gradients,
        series.scaler.disabled,
        user=series.user,
        scaler=series.scaler.name,
        rows_from=series.scaler.rows_from,
        resumes=series.resumes,
    )


def add_logged(
    store: Store,
    run_id: UUID,
    source: Source,
    wanted: Sequence[str],
    held: Mapping[str, Name],
    view: View,
    *,
    stream: int | None = None,
) -> Source:
    """Add the values of the ``wanted`` ones of all names ``held`` to a source that has the updates in view.

    ``stream`` is the one that the source was read with. Raises NotFound for an unknown name.
    """
    during = _during(source, view)
    others = [
        name for name in wanted if name in held and held[name].scaler not in {"", source.scaler}
    ]
    clock, meanwhile = None, during
    if others:
        clock, meanwhile = _placed(store, run_id, source, during, view, stream)
    cells: dict[str, Cells] = {}
    for name in wanted:
        stretch = meanwhile if name in others else during
        cells[name] = store.scalar_series(
            run_id, name, stretch, stream=stream, columns=view.columns
        )
    return replace(source, scalars=cells, logged=list(held), others=others, clock=clock)


def _during(source: Source, view: View) -> Stretch:
    """Convert a view to the steps of a source, or to times."""
    start, stop = view.start, view.stop
    if view.x == "user" and source.user is not None:
        start = None if start is None else source.user.back(start)
        stop = None if stop is None else source.user.back(stop)
    return Stretch(
        start or 0, COUNT_MAX + 1 if stop is None else stop, "time" if view.x == "time" else "step"
    )


def _placed(
    store: Store, run_id: UUID, source: Source, during: Stretch, view: View, stream: int | None
) -> tuple[StepClock | None, Stretch]:
    """Return the clock of a source, and the times of its steps ``during``. Times outside get steps outside."""
    updates = source.updates
    if not len(updates):
        return None, during if view.whole else Stretch(0, 0)
    parts, begin, end = [updates], updates["time_min"].min(), updates["time_max"].max()
    if during.by == "step":
        # After a resume at an earlier step, or a clock set back, steps outside may be between those inside.
        outside = ((0, during.start), (during.stop, COUNT_MAX + 1))
        parts += [
            store.series(
                run_id, stream=stream, start=start, stop=stop, columns=OUTSIDE, sampled=False
            ).updates
            for start, stop in outside
        ]
    held = joined(parts)
    time, step = (
        np.concatenate([held[first], held[last]])
        for first, last in (("time_first", "time_last"), ("first", "last"))
    )
    if during.by == "step":
        later = time[time > end]
        start = int(begin) if (time < begin).any() else 0
        during = Stretch(start, int(later.min()) if len(later) else COUNT_MAX + 1, "time")
    order = np.argsort(time, kind="stable")
    return StepClock(time[order], step[order]), during
