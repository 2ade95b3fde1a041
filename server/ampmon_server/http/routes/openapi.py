"""The route of this server's OpenAPI document."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ampmon_server.http.auth.access import requires
from ampmon_server.http.routes.answers import tagged_json


router = APIRouter(include_in_schema=False)


@router.get("/api/v1/openapi.json")
@requires("read")
def show_document(request: Request) -> Response:
    """Return the OpenAPI document of this server."""
    return tagged_json(request.app.openapi(), request)
