"""A run's figures as Plotly draws them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, TypedDict
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ampmon.wire import COUNT_MAX
from ampmon_server.cells import gradients
from ampmon_server.cells.updates import empty
from ampmon_server.figures import (
    FIGURES,
    OF_MODULES,
    OF_PARAMETERS,
    OF_SCALARS,
    PANELS_MAX,
    ParameterSource,
    Source,
    View,
)
from ampmon_server.figures.parameters import COLUMN_PIXELS
from ampmon_server.routes.answers import ServiceDependency, tagged_json
from ampmon_server.routes.queries import Number, StreamNumber
from ampmon_server.store import BadQuery, NotFound, Store, Stretch


router = APIRouter(prefix="/api/v1/runs/{run_id}/figures")

_FIRST = {"loss": 0, "lr": 1}
"""Names that are drawn before the others."""


@router.get("/{name}")
def show_figure(  # noqa: PLR0913, PLR0917 - one argument per query parameter
    run_id: UUID,
    name: str,
    request: Request,
    service: ServiceDependency,
    start: Number = None,
    stop: Number = None,
    width: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    stream: StreamNumber = None,
    x: Literal["step", "time", "user"] = "step",
    logged: Annotated[str | None, Query(alias="name", max_length=256)] = None,
    statistic: Literal["subnormal", "zero", "headroom", "norm", "on_grid"] = "subnormal",
) -> Response:
    """A figure of the updates with ``start`` <= x < ``stop``, drawn for ``width`` pixels.

    ``name`` is which of the logged values is drawn; without it, the first few. ``statistic`` is what is drawn of each
    parameter.
    """
    draw = FIGURES.get(name)
    if draw is None:
        raise NotFound(f"There is no figure {name!r}; there are {', '.join(FIGURES)}.")
    if start is not None and stop is not None and stop <= start:
        raise BadQuery("stop", "it must be greater than start")
    view = View(start, stop, width, x)
    if name in OF_SCALARS:
        return tagged_json(
            draw(_scalars(service.store, run_id, stream, view, logged), view), request
        )
    if name in OF_PARAMETERS:
        source = _parameters(service.store, run_id, stream, view, statistic)
        return tagged_json(draw(source, view), request)
    read = _modules if name in OF_MODULES else _series
    return tagged_json(draw(read(service.store, run_id, stream, view), view), request)


class _Ends(TypedDict):
    start: int
    stop: int


def _ends(view: View) -> _Ends:
    return _Ends(start=view.start or 0, stop=COUNT_MAX + 1 if view.stop is None else view.stop)


def _series(store: Store, run_id: UUID, stream: int | None, view: View) -> Source:
    series = store.series(
        run_id,
        stream=stream,
        **_ends(view),
        by=view.x,
        columns=view.columns,
    )
    return Source(
        series.updates,
        series.gradients,
        series.disabled,
        user=series.user,
        rows_from=series.rows_from,
        forgotten=series.forgotten,
    )


def _parameters(
    store: Store, run_id: UUID, stream: int | None, view: View, statistic: str
) -> Source:
    source = _series(store, run_id, stream, view)
    of = store.parameter_series(
        run_id,
        stream=stream,
        **_ends(view),
        by=view.x,
        columns=view.columns // COLUMN_PIXELS,
    )
    found = ParameterSource(of.names, of.cells, statistic, of.shard)
    return replace(source, parameters=found)


def _scalars(
    store: Store, run_id: UUID, stream: int | None, view: View, name: str | None
) -> Source:
    held = dict.fromkeys(each.name for each in store.scalar_names(run_id, stream=stream))
    logged = sorted(held, key=lambda each: (_FIRST.get(each, len(_FIRST)), each))
    names = logged[:PANELS_MAX] if name is None else [name]
    source = _series(store, run_id, stream, view)
    start, stop = view.start, view.stop
    if view.x == "user" and source.user is not None:
        start = None if start is None else source.user.back(start)
        stop = None if stop is None else source.user.back(stop)
    stretch = Stretch(
        start or 0, COUNT_MAX + 1 if stop is None else stop, "time" if view.x == "time" else "step"
    )
    cells = store.scalar_series(run_id, names, stretch, stream=stream, columns=view.columns)
    return replace(source, scalars=cells, logged=logged)


def _modules(store: Store, run_id: UUID, stream: int | None, view: View) -> Source:
    sample, disabled = store.activations(
        run_id,
        stream=stream,
        **_ends(view),
        by="step" if view.whole else view.x,
    )
    return Source(empty(), gradients.empty(), disabled, sample)
