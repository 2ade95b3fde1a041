"""Draws one chart of a run from the store, for the page, the report and the notebook. Independent of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict
from uuid import UUID

from ampmon.wire import COUNT_MAX
from ampmon_server.charts import (
    CHARTS,
    PANELS_MAX,
    Figure,
    ParameterSource,
    ReplaySource,
    ScaleSource,
    Source,
    View,
    cut,
)
from ampmon_server.charts.parameter import COLUMN_PIXELS as HISTORY_PIXELS
from ampmon_server.charts.parameters import COLUMN_PIXELS, fields
from ampmon_server.charts.parts.rows import Level
from ampmon_server.charts.parts.source import Axis, Reads
from ampmon_server.model.aggregates import gradients
from ampmon_server.model.aggregates.parameters import empty as no_cells
from ampmon_server.model.aggregates.updates import empty
from ampmon_server.model.names import matching_indices
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.queries.logged_values import add_logged, lowest
from ampmon_server.queries.whatif_reader import (
    measured,
    newest_samples,
    recommended,
    simulator_of,
    tried,
)
from ampmon_server.store import NotFound, ParameterPart, ParameterSeries, Store


_FIRST = {"loss": 0, "lr": 1}
"""Names that are drawn before all others."""


@dataclass(frozen=True, slots=True)
class ChartRequest:
    """What a chart is to show of a run. ``stream`` is any stream of the chosen scaler; None is the run's first.

    ``logged`` is the logged value to draw, None for the first few. ``statistic`` is what to draw of each parameter.
    ``parameter`` is the one to show in detail. ``whatif_scale`` is the power of two of a scale to try. ``search``
    selects parameters, and ``level`` is how finely rows split them. ``rank`` shows one rank alone. ``replay`` is a
    policy and its setting, as `ampmon_server.queries.whatif_reader.tried` takes it. If none is given, the setting is
    the one that the run's findings recommend by these ``thresholds``.
    """

    view: View = field(default_factory=View)
    stream: int | None = None
    logged: str | None = None
    statistic: str = "subnormal"
    parameter: str | None = None
    whatif_scale: int | None = None
    search: str = ""
    level: Level | None = None
    replay: Mapping[str, float | str | None] = field(default_factory=dict)
    rank: int | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)


def draw(store: Store, run_id: UUID, name: str, asked: ChartRequest) -> Figure:
    """Draw the chart ``name`` of a run. Raises NotFound if the chart, the run or the stream does not exist."""
    chart = CHARTS.get(name)
    if chart is None:
        raise NotFound(f"There is no figure {name!r}; there are {', '.join(CHARTS)}.")
    return chart.draw(_READERS[chart.reads](store, run_id, asked), asked.view)


class _Extent(TypedDict):
    """What to read of a scaler: a part of its run, by one of its streams."""

    stream: int | None
    start: int
    stop: int
    by: Axis


def _extent(asked: ChartRequest, view: View) -> _Extent:
    stop = COUNT_MAX + 1 if view.stop is None else view.stop
    return _Extent(stream=asked.stream, start=view.start or 0, stop=stop, by=view.x)


def _steps(asked: ChartRequest) -> _Extent:
    """The part of the newest sample in view. A whole run is read by step."""
    return _extent(asked, View() if asked.view.whole else asked.view)


def series_of(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    """Read the updates and samples of a scaler."""
    view = asked.view
    series = store.series(run_id, **_extent(asked, view), columns=view.columns, rank=asked.rank)
    return Source(
        series.updates,
        series.gradients,
        series.disabled,
        user=series.user,
        scaler=series.scaler,
        rows_from=series.rows_from,
        resumes=series.resumes,
    )


def _ranks(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    found = store.ranks(run_id, **_extent(asked, asked.view), columns=asked.view.columns)
    return replace(series_of(store, run_id, replace(asked, rank=None)), ranks=found)


def _newest(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    source = series_of(store, run_id, asked)
    if asked.view.stop is not None or asked.rank is not None:
        return source
    flushed = newest_samples(store, run_id, asked.stream).flushed
    return replace(source, flushed=flushed, newest=True)


def _parameters(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    def part_of(names: Sequence[str]) -> ParameterPart:
        places = matching_indices(names, asked.search)
        return ParameterPart(places, fields(asked.statistic, len(places)))

    of = _parameter_series(store, run_id, asked, COLUMN_PIXELS, part_of)
    found = ParameterSource(
        of.names,
        of.cells,
        asked.statistic,
        of.shard,
        search=asked.search,
        level=asked.level,
        looked_at=of.sample,
        numel=of.numel,
    )
    return replace(series_of(store, run_id, asked), parameters=found)


def _parameter(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    """Read one parameter, in as many columns as its chart can show."""

    def part_of(names: Sequence[str]) -> ParameterPart:
        return ParameterPart([place for place, name in enumerate(names) if name == asked.parameter])

    of = _parameter_series(store, run_id, asked, HISTORY_PIXELS, part_of)
    found = ParameterSource(of.names, of.cells, shard=of.shard, chosen=asked.parameter)
    return replace(series_of(store, run_id, asked), parameters=found)


def _parameter_series(
    store: Store,
    run_id: UUID,
    asked: ChartRequest,
    pixels: int,
    part_of: Callable[[Sequence[str]], ParameterPart],
) -> ParameterSeries:
    columns = asked.view.columns // pixels
    return store.parameter_series(
        run_id, **_extent(asked, asked.view), columns=columns, part_of=part_of
    )


def _sample(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    name = asked.parameter
    if name is None:
        return Source(empty(), gradients.empty())
    sample = store.parameter_sample(run_id, name, **_steps(asked))
    found = ParameterSource((name,), no_cells(), chosen=name, sample=sample)
    return Source(empty(), gradients.empty(), parameters=found)


def _scalars(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    view, stream = asked.view, asked.stream
    found = lowest(store.scalar_names(run_id, stream=stream))
    held = dict(sorted(found.items(), key=lambda each: (_FIRST.get(each[0], len(_FIRST)), each[0])))
    most = 1 if view.stacked else PANELS_MAX
    names = list(held)[:most] if asked.logged is None else [asked.logged]
    source = series_of(store, run_id, asked)
    return add_logged(store, run_id, source, names, held, view, stream=stream)


def _modules(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    sample, disabled = store.activations(run_id, **_steps(asked))
    return Source(empty(), gradients.empty(), disabled, sample)


def _scales(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    found = measured(store, run_id, asked.stream, asked.parameter)
    nothing = Source(empty(), gradients.empty())
    if isinstance(found, str):
        return replace(nothing, why_none=found)
    scales = ScaleSource(
        found.gradient,
        found.gone,
        found.first,
        found.last,
        asked.parameter,
        asked.view.format,
        asked.whatif_scale,
        store.policy(run_id, stream=asked.stream),
        recommended(store, run_id, asked.thresholds, asked.stream),
    )
    return replace(nothing, scales=scales)


def _replay(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    source, view = series_of(store, run_id, asked), asked.view
    window = cut(source, view)
    if not len(window.updates):
        return source
    simulator = simulator_of(store, run_id, asked.stream)
    history = simulator.history
    advised = recommended(store, run_id, asked.thresholds, asked.stream)
    own = any(each is not None for each in asked.replay.values())
    setting = tried(history, asked.replay if own else advised.setting, "sim_")
    places = history.places(*window.steps, most=view.columns // 2)
    found = ReplaySource(
        simulator.recorded(places),
        simulator.run(setting, places=places),
        history.is_whole,
        history.policy,
        advised,
    )
    return replace(source, replayed=found)


_READERS: Mapping[Reads, Callable[[Store, UUID, ChartRequest], Source]] = {
    "series": series_of,
    "newest": _newest,
    "ranks": _ranks,
    "scalars": _scalars,
    "parameters": _parameters,
    "parameter": _parameter,
    "sample": _sample,
    "modules": _modules,
    "scales": _scales,
    "replay": _replay,
}
