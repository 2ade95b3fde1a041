"""Errors as RFC 9457 problem documents: the one shape in which this server says no. Knows no cause."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import orjson
from starlette.responses import Response


def problem(
    status: int,
    detail: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
    **more: object,
) -> Response:
    """A problem document. ``field`` names the input at fault, ``more`` are members of its own."""
    document: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **({"field": field} if field is not None else {}),
        **more,
    }
    return Response(orjson.dumps(document), status, headers, media_type="application/problem+json")
