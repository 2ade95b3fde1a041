"""RFC 9457 problem documents, the format of all errors of this server."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from starlette.responses import Response


MEDIA_TYPE = "application/problem+json"

PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"const": "about:blank"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What failed, in one sentence."},
        "field": {"type": "string", "description": "The invalid input, if there is one."},
        "scope": {"type": "string", "description": "The scope that the request needs."},
        "header": {
            "type": "string",
            "description": "The header to send: `attempt`, or the name of a stream.",
        },
    },
}
"""The JSON Schema of a problem document."""


def problem(
    status: int,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **members: object,
) -> Response:
    """Return a problem document with these further members, such as ``field``, the input at fault."""
    document = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **members,
    }
    return Response(orjson.dumps(document), status, headers, media_type=MEDIA_TYPE)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses with these statuses, as an OpenAPI document describes them."""
    return {
        str(status): {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted(statuses)
    }
