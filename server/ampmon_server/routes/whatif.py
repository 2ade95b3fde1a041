"""What other scales and number formats would make of a run's gradients, and which of its zeros fp16 flushed."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ampmon_server.routes.answers import ServiceDependency, tagged_json
from ampmon_server.routes.queries import StreamNumber
from ampmon_server.store import BadQuery, NotFound, Store
from ampmon_server.whatif import (
    DOWN,
    FORMATS,
    UP,
    Flushed,
    Gradient,
    best,
    curve,
    flushed_in,
    of_parameter,
    of_samples,
)


router = APIRouter(prefix="/api/v1/runs/{run_id}")


@router.get("/whatif")
def show_whatif(
    run_id: UUID,
    request: Request,
    service: ServiceDependency,
    stream: StreamNumber = None,
    parameter: Annotated[str | None, Query(max_length=1024)] = None,
    headroom: Annotated[float, Query(ge=0, le=32)] = 1.0,
) -> Response:
    """Shares of underflow, subnormal and overflow at each scale in each format, with their bounds.

    Of all parameters on fp16's grid, or of ``parameter``. ``best`` is the largest power of two that leaves ``headroom``
    bits.
    """
    gone = None
    if parameter is None:
        samples = service.store.gradient_samples(run_id, stream=stream)
        gradient, gone = of_samples(samples), flushed_in(samples)
        if gradient is None:
            raise NotFound(f"Run {run_id} has no sampled gradient on fp16's grid that is finite.")
    else:
        gradient = _of_parameter(service.store, run_id, stream, parameter)
    return tagged_json(
        {
            "run_id": str(run_id),
            "parameter": parameter,
            **_told(gradient, gone, headroom),
        },
        request,
    )


def _of_parameter(store: Store, run_id: UUID, stream: int | None, name: str) -> Gradient:
    sampled = store.parameters(run_id, stream=stream)
    found = next((each for each in sampled.parameters if each.name == name), None)
    if found is None:
        raise BadQuery("parameter", f"there is no {name!r} in the newest sample")
    columns = store.updates(
        run_id, stream=stream, start=sampled.step, stop=sampled.step + 1, limit=1
    )
    (scale,) = (columns.columns["scale"] or [None])[:1]
    if not scale or not found.looked or found.inf or found.nan or not found.on_grid:
        raise BadQuery(
            "parameter",
            f"the newest gradient of {name!r} is not finite, not on fp16's grid, or was not looked at",
        )
    return of_parameter(scale, found.histogram, found.zeros, found.looked, found.amax or 0.0)


def _told(gradient: Gradient, gone: Flushed | None, headroom: float) -> dict[str, object]:
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
