"""Builds the ASGI app. It opens nothing before it starts and leaves nothing open after it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ampmon_server.background.writer import QueueFull
from ampmon_server.http.auth.access import methods
from ampmon_server.http.auth.guard import Guard
from ampmon_server.http.auth.limits import TooManyAttempts
from ampmon_server.http.logs import ID_HEADER, RequestLogMiddleware
from ampmon_server.http.openapi import describe
from ampmon_server.http.problems import problem
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
from ampmon_server.http.routes.bodies import BodyRefused
from ampmon_server.http.service import NotAllowed, Service
from ampmon_server.pages import documentation
from ampmon_server.settings import Settings
from ampmon_server.store import (
    BadBatch,
    BadQuery,
    Busy,
    NameTaken,
    NotFound,
    UnknownHeader,
    Unreadable,
)


RETRY_AFTER_S = "1"


def create_app(settings: Settings, service: Service | None = None) -> FastAPI:
    """Return the server as an ASGI app.

    The app uses ``service`` if given, which must be open. Otherwise it opens one at startup and closes it at shutdown.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        opened = app.state.service = service or Service(settings)
        beside = [asyncio.create_task(each) for each in opened.background()]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
            opened.bus.close()
            if service is None:
                # A cancelled task may have a thread that still uses the database.
                await asyncio.gather(*beside, return_exceptions=True)
                await asyncio.get_running_loop().shutdown_default_executor()
                opened.close()

    app = FastAPI(
        title="ampmon",
        lifespan=lifespan,
        openapi_url=None,  # `routes.openapi` serves the document
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=_ANSWERS,
    )
    app.state.service = service
    app.add_middleware(Guard, settings=settings)
    # Outside the guard, because browsers send no token with a preflight request.
    if settings.allowed_origins:
        app.add_middleware(CORSMiddleware, **_elsewhere(settings))
    if settings.base_path:
        app.add_middleware(BasePath, base_path=settings.base_path)
    app.add_middleware(RequestLogMiddleware)  # the one added last runs first
    app.router.routes.extend(all_routes())
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]  # as FastAPI documents it
    return app


def all_routes() -> list[BaseRoute]:
    """Return every route in one flat list, so that a test can walk them."""
    parts = (ingest, runs, alerts, series, analysis, figures, live, auth, page, health)
    return [route for part in parts for route in part.router.routes]


def _elsewhere(settings: Settings) -> dict[str, Any]:
    """CORS options: scripts of other sites may use a token, but never a reader's cookie."""
    return {
        "allow_origins": settings.allowed_origins,
        "allow_methods": ("GET", "POST", "PATCH", "DELETE"),
        "allow_headers": ("Authorization", "Content-Type", "If-None-Match"),
        "expose_headers": ("ETag", "Retry-After", ID_HEADER),
        "allow_credentials": False,
    }


async def _refused(request: Request, error: Exception) -> Response:
    match error:
        case NotFound():
            return _missing(request) or problem(404, str(error))
        case NotAllowed():
            return problem(403, str(error), scope="admin")
        case NameTaken():
            return problem(409, str(error), field="name")
        case UnknownHeader():
            return problem(409, str(error), field="headers", header=error.header)
        case BadBatch() | BadQuery():
            return problem(422, str(error), field=error.field)
        case BodyRefused():
            return problem(error.status, str(error), field=error.field)
    raise error


def _missing(request: Request) -> Response | None:
    """The page for a browser that requests an unknown address; None for programs."""
    path = request.scope["path"]
    if path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return None
    return HTMLResponse(documentation.not_found(path), 404)


async def _unavailable(request: Request, error: Exception) -> Response:
    detail = str(error) or "Too many requests are waiting to write."
    request.state.why = detail
    return problem(503, detail, headers={"Retry-After": RETRY_AFTER_S})


async def _too_many_attempts(_: Request, error: TooManyAttempts) -> Response:
    return problem(429, str(error), headers={"Retry-After": str(error.wait_s)})


async def _invalid(_: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    place, name = first["loc"][:2]
    if place == "path":
        return problem(404, f"The path holds no valid {name}.")
    return problem(422, f"{name}: {first['msg']}", field=name)


async def _http_error(request: Request, error: HTTPException) -> Response:
    headers = error.headers
    if error.status_code == 404 and (page := _missing(request)):
        return page
    if error.status_code == 405:  # Starlette lists only the methods of the path's first route
        headers = {"Allow": ", ".join(methods(request.app.routes, request.scope))}
    return problem(error.status_code, str(error.detail), headers=headers)


_ANSWERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    **dict.fromkeys(
        (NotFound, NotAllowed, NameTaken, UnknownHeader, BadBatch, BadQuery, BodyRefused), _refused
    ),
    **dict.fromkeys((Busy, Unreadable, QueueFull), _unavailable),
    TooManyAttempts: _too_many_attempts,
    RequestValidationError: _invalid,
    HTTPException: _http_error,
}


@dataclass(frozen=True, slots=True)
class BasePath:
    """ASGI middleware that strips ``base_path`` from request paths before the guard and the routes see them.

    Paths without it stay unchanged: they come from a proxy that strips it, or from callers on this machine.
    """

    app: ASGIApp
    base_path: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith(f"{self.base_path}/"):
            # In place, so that outer middleware sees the route too.
            scope["path"] = path[len(self.base_path) :]
        elif path == self.base_path and scope["type"] == "http":
            # The page's own addresses are relative, so its address must end in a slash.
            await RedirectResponse(f"{path}/", 308)(scope, receive, send)
            return
        await self.app(scope, receive, send)
