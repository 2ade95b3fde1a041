"""Estimates how a run's gradients fare at other scales and in other formats, and which of its zeros fp16 flushed."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ampmon_server.analysis.flushed import Flushed
from ampmon_server.analysis.whatif import DOWN, FORMATS, UP, Gradient, best, curve
from ampmon_server.http.auth.access import requires
from ampmon_server.http.routes.answers import ServiceDependency, tagged_json
from ampmon_server.http.routes.callers import OF_RUN
from ampmon_server.http.routes.queries import ParameterName, StreamNumber
from ampmon_server.queries.whatif_reader import measured
from ampmon_server.store import NotFound


router = APIRouter(prefix="/api/v1/runs/{run_id}", dependencies=[OF_RUN])


@router.get("/whatif")
@requires("read")
def show_whatif(
    run_id: UUID,
    request: Request,
    service: ServiceDependency,
    stream: StreamNumber = None,
    parameter: ParameterName = None,
    headroom: Annotated[float, Query(ge=0, le=32)] = 1.0,
) -> Response:
    """Estimate the shares of underflow, subnormal and overflow at each scale in each format, with bounds.

    It covers all fp16-representable parameters, or only ``parameter``. ``best`` is the largest power of two that leaves
    ``headroom`` bits.
    """
    found = measured(service.store, run_id, stream, parameter)
    if isinstance(found, str):
        raise NotFound(f"Run {run_id}: {found}.")
    return tagged_json(
        {
            "run_id": str(run_id),
            "parameter": parameter,
            **_whatif_json(found.gradient, found.gone, headroom),
        },
        request,
    )


def _whatif_json(gradient: Gradient, gone: Flushed | None, headroom: float) -> dict[str, object]:
    return {
        "scale": 2.0**gradient.level,
        "zero_fraction": gradient.zeros,
        "flushed": gone,
        "best": best(gradient, gone, headroom),
        "formats": {name: curve(gradient, gone, into) for name, into in FORMATS.items()},
        "errors": {
            "down": [each._asdict() for each in DOWN],
            "up": [each._asdict() for each in UP],
        },
    }
