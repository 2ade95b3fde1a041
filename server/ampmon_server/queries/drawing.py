"""Draws one chart of a run from the store, for the page, the report and the notebook. Independent of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from ampmon_server.charts import FIGURES, Figure, ParameterSource, ReplaySource, Source, View
from ampmon_server.charts.parameters import COLUMN_PIXELS, fields
from ampmon_server.charts.parts.chart import Reads
from ampmon_server.charts.parts.samples import COLUMN_PIXELS as HISTORY_PIXELS
from ampmon_server.charts.parts.window import cut
from ampmon_server.charts.scalars import PANELS_MAX
from ampmon_server.model.aggregates.parameters import wide
from ampmon_server.model.names import matching_indices
from ampmon_server.queries.sources import (
    ChartRequest,
    Extent,
    add_logged,
    extent_of,
    read_series,
    series_of,
    source_of,
)
from ampmon_server.queries.whatif_reader import (
    measured,
    newest_samples,
    recommended,
    simulator_of,
    tried,
)
from ampmon_server.store import NotFound, ParameterPart, Store
from ampmon_server.store.updates.logged import lowest


_FIRST = {"loss": 0, "lr": 1}
"""Names that are drawn before all others."""

_NOTHING = Source()
"""For charts that draw no updates."""


def draw(store: Store, run_id: UUID, name: str, asked: ChartRequest) -> Figure:
    """Draw the chart ``name`` of a run. Raises NotFound if the chart, the run or the stream does not exist."""
    chart = FIGURES.get(name)
    if chart is None:
        raise NotFound(f"There is no figure {name!r}; there are {', '.join(FIGURES)}.")
    return chart(_READERS[chart.reads](store, run_id, asked), asked.view)


def _steps(asked: ChartRequest) -> Extent:
    """The part of the newest sample in view. A whole run is read by step."""
    return extent_of(asked, View() if asked.view.whole else asked.view)


def _ranks(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    source = series_of(store, run_id, replace(asked, rank=None), sampled=False)
    found = store.ranks(run_id, source.updates, asked.view.columns, stream=asked.stream)
    return replace(source, ranks=found)


def _newest(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    source = series_of(store, run_id, asked)
    # The estimate is of the whole run at its newest scale, which such a view does not show.
    if asked.view.stop is not None or asked.rank is not None:
        return source
    flushed = newest_samples(store, run_id, asked.stream).flushed
    return replace(source, flushed=flushed, newest=True)


def _unchosen(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    """For a chart that needs a parameter, and draws nothing else. Raises NotFound."""
    store.scaler_name(run_id, stream=asked.stream)
    return _NOTHING


def _parameters(store: Store, run_id: UUID, asked: ChartRequest, *, one: bool = False) -> Source:
    """Read the parameters that match the search, or the chosen ``one``, in as many columns as its chart can show."""
    view = asked.view
    if one and view.parameter is None:
        return _unchosen(store, run_id, asked)

    def part_of(names: Sequence[str]) -> ParameterPart:
        if one:
            return ParameterPart([at for at, name in enumerate(names) if name == view.parameter])
        places = matching_indices(names, view.search)
        return ParameterPart(places, fields(view.statistic, len(places)))

    series = read_series(store, run_id, asked, sampled=False)
    of = store.parameter_series(
        run_id,
        series.stretch,
        stream=asked.stream,
        columns=view.columns // (HISTORY_PIXELS if one else COLUMN_PIXELS),
        part_of=part_of,
    )
    if not wide(of.cells, "looked").any():  # then the chart has to know whether anything is sampled
        series = read_series(store, run_id, asked)
    found = ParameterSource(of.names, of.cells, of.shard, looked_at=of.sample, numel=of.numel)
    return replace(source_of(series), parameters=found)


def _sample(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    name = asked.view.parameter
    if name is None:
        return _unchosen(store, run_id, asked)
    sample = store.parameter_sample(run_id, name, **_steps(asked))
    return replace(_NOTHING, sample=sample)


def _scalars(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    view, stream = asked.view, asked.stream
    found = lowest(store.scalar_names(run_id, stream=stream))
    held = dict(sorted(found.items(), key=lambda each: (_FIRST.get(each[0], len(_FIRST)), each[0])))
    most = 1 if view.stacked else PANELS_MAX
    names = list(held)[:most] if asked.logged is None else [asked.logged]
    source = series_of(store, run_id, asked, sampled=False)
    return add_logged(store, run_id, source, names, held, view, stream=stream)


def _modules(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    sample, disabled = store.activations(run_id, **_steps(asked))
    return replace(_NOTHING, disabled=disabled, modules=sample)


def _scales(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    found = measured(store, run_id, asked.stream, asked.view.parameter)
    if not isinstance(found, str):
        found = replace(
            found,
            policy=store.policy(run_id, stream=asked.stream),
            recommended=recommended(store, run_id, asked.thresholds, asked.stream),
        )
    return replace(_NOTHING, scales=found)


def _replay(store: Store, run_id: UUID, asked: ChartRequest) -> Source:
    source, view = series_of(store, run_id, asked, sampled=False), asked.view
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
        history,
        simulator.recorded(),
        simulator.recorded_path(places),
        simulator.run(setting),
        simulator.path(setting, places),
        advised,
    )
    return replace(source, replayed=found)


_READERS: Mapping[Reads, Callable[[Store, UUID, ChartRequest], Source]] = {
    "series": series_of,
    "updates": partial(series_of, sampled=False),
    "newest": _newest,
    "ranks": _ranks,
    "scalars": _scalars,
    "parameters": _parameters,
    "parameter": partial(_parameters, one=True),
    "sample": _sample,
    "modules": _modules,
    "scales": _scales,
    "replay": _replay,
}
