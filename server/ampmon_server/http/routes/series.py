"""A run's rows: updates as columns, skips, events, logged values, parameters, modules; and all rows as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal
from uuid import UUID

import anyio
import orjson
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response, StreamingResponse

from ampmon.errors import ConfigurationError
from ampmon.wire import COUNT_MAX
from ampmon_server.exchange.formats import (
    MEDIA_TYPES,
    Format,
    Table,
    written,
)
from ampmon_server.exchange.tables import pieces
from ampmon_server.http.auth.access import requires
from ampmon_server.http.problems import problem, refusals
from ampmon_server.http.routes.answers import json_answer, tagged_json
from ampmon_server.http.routes.parameters import (
    NO_NUL,
    Limit,
    Number,
    OneOf,
    ParameterName,
    RowCursor,
    ScalarName,
    StreamNumber,
)
from ampmon_server.http.service import EXPORTS_MAX, OF_RUN, ServiceDependency
from ampmon_server.model.case import Skip
from ampmon_server.model.parameter_words import caption, cells
from ampmon_server.queries import merged_skips
from ampmon_server.store import PARAMETER_SORTS, Busy, ParameterQuery
from ampmon_server.store.engine.rows import Paged


router = APIRouter(prefix="/api/v1/runs/{run_id}", dependencies=[OF_RUN])

UPDATES_MAX = 1_000_000
SKIPS_MAX = 1000
"""Maximum number of rows of the ledger that are read at once."""
EXPORT_WAIT_S = 30.0


@router.get("/updates")
@requires("read")
def list_updates(
    run_id: UUID,
    service: ServiceDependency,
    stream: StreamNumber = None,
    start: Number = None,
    stop: Number = None,
    limit: Annotated[int, Query(ge=1, le=UPDATES_MAX)] = 10_000,
    cursor: Number = None,
) -> Response:
    """List the updates with ``start`` <= step < ``stop`` as columns, each step once, with ranks and attempts merged.

    Steps before ``rows_from`` are stored only as aggregates, which figures show.
    """
    first = (start or 0) if cursor is None else cursor
    page = service.store.updates(
        run_id,
        stream=stream,
        start=first,
        stop=COUNT_MAX + 1 if stop is None else stop,
        limit=limit,
    )
    following = None if page.following is None else str(page.following)
    return json_answer({**page.columns, "rows_from": page.rows_from, "next": following})


@router.get("/skips")
@requires("read")
def list_skips(
    run_id: UUID,
    request: Request,
    service: ServiceDependency,
    stream: Number = None,
    limit: Limit = 100,
    cursor: RowCursor = None,
    parameter: ParameterName = None,
    shared: bool = False,
) -> Response:
    """List skipped steps, newest first, a row per rank and optimizer. ``parameter`` is a culprit.

    With ``shared``, the ranks of a skip share one row, which ``ranks_words`` and ``words`` describe.

    ``loss`` is `finite`, `not_finite`, or `overflowed` when it was scaled. ``origin`` is `input`, `forward`, `loss` or
    `backward`, with ``origin_module``. Null where not known.
    """

    every = service.store.run(run_id)[0].ranks if shared else 1

    def read(following: str | None) -> Paged[Skip]:
        rows = min(SKIPS_MAX, limit * every)
        return service.store.skips(
            run_id, stream=stream, limit=rows, cursor=following, parameter=parameter
        )

    page = merged_skips.shared(read, every, limit, cursor) if shared else read(cursor)
    return tagged_json({"skips": page.rows, "next": page.next}, request)


@router.get("/skips/nearest")
@requires("read")
def find_skip(
    run_id: UUID,
    service: ServiceDependency,
    side: Literal["after", "before"],
    step: Number = None,
    time: Number = None,
    stream: StreamNumber = None,
) -> Response:
    """Find the skip nearest to ``step`` or ``time`` on one ``side``: its step and time, null if there is none.

    Without both, the first skip ``after`` the run's start, or the last ``before`` its end.
    """
    after = side == "after"
    found = service.store.nearest_skip(run_id, step, after=after, stream=stream, time=time)
    return json_answer(found or {"step": None, "time": None})


@router.get("/events")
@requires("read")
def list_events(
    run_id: UUID,
    request: Request,
    service: ServiceDependency,
    stream: Number = None,
    limit: Limit = 100,
    cursor: RowCursor = None,
) -> Response:
    """List the other events of a run, newest first."""
    page = service.store.events(run_id, stream=stream, limit=limit, cursor=cursor)
    return tagged_json({"events": page.rows, "next": page.next}, request)


async def _parameter_page(
    search: Annotated[str, Query(max_length=256, pattern=NO_NUL)] = "",
    name: ParameterName = None,
    sort: Annotated[str, OneOf(PARAMETER_SORTS)] = "model",
    backwards: bool = False,
    first: Annotated[int, Query(ge=0, le=COUNT_MAX)] = 0,
    limit: Annotated[int | None, Query(ge=1, le=1000)] = None,
) -> ParameterQuery:
    return ParameterQuery(search, name, sort, backwards, first, limit)


@router.get("/parameters")
@requires("read")
def list_parameters(
    run_id: UUID,
    request: Request,
    service: ServiceDependency,
    page: Annotated[ParameterQuery, Depends(_parameter_page)],
    stream: StreamNumber = None,
    step: Number = None,
) -> Response:
    """List the parameters at the newest sample at or before ``step``, a row each.

    ``search`` filters them by name, ``name`` selects one. They are sorted by ``sort``, the worst first, or in reverse
    with ``backwards``. A page has ``limit`` of them from ``first`` on. ``words`` has a row's statistics in words,
    and ``caption`` what the page says of the table.
    """
    sampled = service.store.parameters(
        run_id, stream=stream, step=COUNT_MAX if step is None else step, page=page
    )
    document = orjson.loads(orjson.dumps(sampled))
    for row in document["parameters"]:
        row["words"] = cells(row)
    return tagged_json({**document, "caption": caption(document, page.sort)}, request)


@router.get("/modules")
@requires("read")
def list_modules(
    run_id: UUID,
    request: Request,
    service: ServiceDependency,
    stream: StreamNumber = None,
    step: Number = None,
) -> Response:
    """List the modules at the newest sample of activations at or before ``step``, in forward order. 404 without one."""
    sampled = service.store.modules(run_id, stream=stream, step=COUNT_MAX if step is None else step)
    return tagged_json(sampled, request)


@router.get("/scalars")
@requires("read")
def list_scalars(
    run_id: UUID,
    request: Request,
    service: ServiceDependency,
    name: ScalarName = None,
    stream: StreamNumber = None,
    start: Number = None,
    stop: Number = None,
    limit: Annotated[int, Query(ge=1, le=UPDATES_MAX)] = 10_000,
) -> Response:
    """List the logged values of ``name`` with ``start`` <= step < ``stop``. Without it, list all names."""
    if name is None:
        names = service.store.scalar_names(run_id, stream=stream)
        return tagged_json({"names": names}, request)
    values = service.store.scalars(
        run_id,
        name,
        stream=stream,
        start=start or 0,
        stop=COUNT_MAX + 1 if stop is None else stop,
        limit=limit,
    )
    return tagged_json(values, request)


async def _export_turn(service: ServiceDependency) -> AsyncIterator[None]:
    """Wait until an export may run, and let the next one run at its end. Raises Busy."""
    try:
        with anyio.fail_after(EXPORT_WAIT_S):
            await service.exports.acquire()
    except TimeoutError:
        raise Busy(f"{EXPORTS_MAX} exports are running already. Retry later.") from None
    try:
        yield
    finally:
        service.exports.release()


@router.get(
    "/export",
    dependencies=[Depends(_export_turn)],
    response_class=Response,
    responses={
        200: {"content": {media_type: {} for media_type in MEDIA_TYPES.values()}},
        **refusals(501),
    },
)
@requires("read")
def export_run(
    run_id: UUID,
    service: ServiceDependency,
    what: Table = "updates",
    kind: Annotated[Format, Query(alias="format")] = "jsonl",
) -> Response:
    """Download all rows of one kind as a file. 501 if the server lacks pyarrow for ``parquet`` and ``arrow``.

    Two exports run at once. A further one waits for up to 30 s, then it gets 503.
    """
    rows = pieces(service.store, run_id, what)
    try:
        parts = written(kind, what, rows)
    except ConfigurationError as missing:
        return problem(501, str(missing))
    name = f'attachment; filename="{run_id}-{what}.{kind}"'
    return StreamingResponse(
        parts, media_type=MEDIA_TYPES[kind], headers={"Content-Disposition": name}
    )
