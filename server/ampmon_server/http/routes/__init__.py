"""The HTTP routes by subject. Each reads a request, calls the store or the charts, and shapes the answer. No SQL."""

from __future__ import annotations

from starlette.routing import BaseRoute

from ampmon_server.http.routes import (
    alerts,
    analysis,
    auth,
    figures,
    health,
    ingest,
    live,
    page,
    runs,
    series,
)


def all_routes() -> list[BaseRoute]:
    """Return every route in one flat list, so that a test can walk them."""
    parts = (ingest, runs, alerts, series, analysis, figures, live, auth, page, health)
    return [route for part in parts for route in part.router.routes]
