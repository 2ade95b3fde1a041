"""Serves the page's own files, each by its name: no path from a request reaches the file system."""

from __future__ import annotations

from functools import cache

import orjson
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ampmon.errors import ConfigurationError
from ampmon_server.charts import FIGURES
from ampmon_server.http.auth.access import requires
from ampmon_server.http.problems import problem
from ampmon_server.http.routes.answers import content_answer, file_answer
from ampmon_server.model.parameter_statistics import STATISTICS
from ampmon_server.model.readouts import RECORDING, TRAINING
from ampmon_server.model.terms import IN_TABLE, SCOPES, SEVERITIES, STATUSES, TERMS
from ampmon_server.pages import assets, documentation
from ampmon_server.store import NotFound


router = APIRouter(include_in_schema=False)

_IMMUTABLE = "private, max-age=31536000, immutable"


@router.get("/")
@requires("page")
def index(request: Request) -> Response:
    """Serve the page, with the definitions of terms, and what charts and statistics declare about themselves.

    Its modules and style sheets have versioned addresses, so browsers cache them forever. All modules are named, so
    browsers request them at once and not each after those that import it.
    """
    version = assets.page_version()
    shell = (assets.web_directory() / "index.html").read_text("utf-8")
    modules = [name for name in assets.page_files("js") if name != "report.js"]
    named = "".join(f'<link rel="modulepreload" href="js/{name}">' for name in modules)
    shell = shell.replace("</head>", f"{named}</head>")
    for kind in ("css", "js"):
        shell = shell.replace(f'"{kind}/', f'"{kind}/{version}/')
    shell = shell.replace("{declared}", _declared())
    return content_answer(shell.encode(), "text/html", request)


@cache
def _declared() -> str:
    parts = ("title", "tab", "choices", "sampled")
    charts = {name: {part: getattr(of, part) for part in parts} for name, of in FIGURES.items()}
    statistics = {
        name: {
            "title": each.title,
            "definition": IN_TABLE.get(name, each.definition),
            "section": each.section,
        }
        for name, each in STATISTICS.items()
    }
    logged = {
        "title": "Logged value",
        "tab": None,
        "choices": ["name", "smooth", "y", "baseline"],
        "sampled": False,
    }
    declared = {
        "charts": {**charts, "logged": logged},
        "statistics": statistics,
        "terms": {name: each._asdict() for name, each in TERMS.items()},
        "numbers": {"training": TRAINING, "recording": RECORDING},
        "statuses": STATUSES,
        "severities": SEVERITIES,
        "scopes": SCOPES,
    }
    return orjson.dumps(declared).decode()


@router.get("/css/{version}/{name}")
@requires("page")
def style(version: str, name: str, request: Request) -> Response:
    """Serve a style sheet of the page."""
    return _named("css", version, name, request)


@router.get("/roles.json")
@requires("page")
def roles(request: Request) -> Response:
    return file_answer(assets.web_directory() / "roles.json", request)


@router.get("/js/{version}/{name}")
@requires("page")
def script(version: str, name: str, request: Request) -> Response:
    """Serve a JavaScript module of the page."""
    return _named("js", version, name, request)


def _named(kind: str, version: str, name: str, request: Request) -> Response:
    path = assets.page_files(kind).get(name)
    if path is None:
        raise NotFound("There is no such file.")
    # A page from an older server gets the current file, and does not cache it.
    return file_answer(
        path, request, _IMMUTABLE if version == assets.page_version() else "no-cache"
    )


@router.get("/docs/{name:path}")
@requires("page")
def documentation_page(name: str, request: Request) -> Response:
    """Serve a page of the documentation, or a file of it. The gallery's reports use the page's own Plotly."""
    if name == "gallery/plotly.min.js":
        return vendored(request)
    path = documentation.file(name)
    if path is not None:
        return file_answer(path, request)
    if documentation.file("") is None:
        return HTMLResponse(documentation.not_built(), 404)
    raise NotFound("There is no such page.")


@router.get("/docs")
@requires("page")
def documentation_index() -> Response:
    return RedirectResponse("docs/", 308)


@router.get("/findings/{name}")
@requires("page")
def finding(name: str) -> Response:
    """Redirect to the documentation of a finding, by its rule. ampmon prints this address."""
    return RedirectResponse(f"../docs/{documentation.address_of(name)}", 308)


@router.get("/findings")
@requires("page")
def findings() -> Response:
    return RedirectResponse("docs/findings/index.html", 308)


@router.get("/vendor/plotly.min.js")
@requires("page")
def vendored(request: Request) -> Response:
    """Serve Plotly."""
    try:
        script = assets.plotly()
    except ConfigurationError as bad:
        return problem(503, str(bad))
    return content_answer(script, "text/javascript", request)
