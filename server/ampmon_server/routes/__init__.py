"""The HTTP routes, by subject: each reads a request, asks the store or the figures, and shapes the answer. No SQL."""

from __future__ import annotations

from fastapi import APIRouter

from ampmon_server.routes import figures, health, ingest, live, login, page, runs, series


def routers() -> list[APIRouter]:
    """All routes, the API's under /api/v1."""
    api = APIRouter(prefix="/api/v1")
    for part in (ingest, runs, series, figures, live, login):
        api.include_router(part.api)
    return [api, login.router, page.router, health.router]
