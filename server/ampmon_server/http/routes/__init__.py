"""The HTTP routes by subject. Each reads a request, calls the store or the charts, and shapes the answer. No SQL."""

from __future__ import annotations

from starlette.routing import BaseRoute

from ampmon_server.http.routes import (
    alerts,
    compare,
    diagnosis,
    export,
    figures,
    health,
    ingest,
    live,
    login,
    openapi,
    page,
    proof,
    runs,
    series,
    simulate,
    tokens,
    whatif,
)


def all_routes() -> list[BaseRoute]:
    """Return every route in one flat list, so that a test can walk them."""
    parts = (
        ingest,
        runs,
        alerts,
        compare,
        series,
        export,
        diagnosis,
        simulate,
        whatif,
        figures,
        live,
        login,
        proof,
        tokens,
        page,
        health,
        openapi,
    )
    return [route for part in parts for route in part.router.routes]
