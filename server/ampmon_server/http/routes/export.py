"""A run's rows as a file of any length, streamed as it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from ampmon_server.exchange.formats import (
    MEDIA_TYPES,
    Format,
    MissingFormat,
    Table,
    writer,
    written,
)
from ampmon_server.exchange.tables import pieces
from ampmon_server.http.auth.access import requires
from ampmon_server.http.problems import problem, refusals
from ampmon_server.http.routes.answers import ServiceDependency
from ampmon_server.http.routes.callers import OF_RUN


router = APIRouter(prefix="/api/v1/runs/{run_id}", dependencies=[OF_RUN])


@router.get(
    "/export",
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
    """Download all rows of one kind as a file. 501 if the server lacks pyarrow for ``parquet`` and ``arrow``."""
    rows = pieces(service.store, run_id, what)
    try:
        parts: Iterator[bytes] = written(writer(kind, what), rows)
    except MissingFormat as missing:
        return problem(501, str(missing))
    name = f'attachment; filename="{run_id}-{what}.{kind}"'
    return StreamingResponse(
        parts, media_type=MEDIA_TYPES[kind], headers={"Content-Disposition": name}
    )
