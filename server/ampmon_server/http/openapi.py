"""The OpenAPI document, including what FastAPI does not see: the guard, and errors as problem documents."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from ampmon import wire
from ampmon_server.http.auth.access import Access, required_access
from ampmon_server.http.problems import PROBLEM, refusals


_TOKEN = "token"
_EVENTS = "text/event-stream"
_REFS = "#/components/schemas/{name}"
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def describe(app: FastAPI) -> dict[str, Any]:
    """The document of an app's routes. It is built once and kept with the app."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            routes=app.routes,
            description="Errors are problem documents (RFC 9457). Every request for data needs a token.",
        )
        needed = {
            (method, route.path): required_access(route)
            for route in app.routes
            if isinstance(route, APIRoute)
            for method in route.methods or ()
        }
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _add_refusals(operation, method.upper(), path, needed[method.upper(), path])
        document["security"] = [{_TOKEN: []}]
        document["components"] = {
            "schemas": {"Problem": PROBLEM, **_of_the_wire()},
            "securitySchemes": {_TOKEN: {"type": "http", "scheme": "bearer"}},
        }
        app.openapi_schema = _portable(document)
    return app.openapi_schema


def _add_refusals(operation: dict[str, Any], method: str, path: str, access: Access) -> None:
    """Add the errors that come from outside the route's own code. Responses that the route declares stay."""
    known = access != "public"
    statuses = {421, 429, 503}
    if known:
        statuses.add(401)
    else:
        operation["security"] = []
    if access != "token" or method != "GET":
        statuses.add(403)
    if "{" in path:
        statuses.add(404)
    responses = {**refusals(*statuses), **operation["responses"]}
    responses.pop("422", None)  # has FastAPI's shape, and covers paths too, where it is a 404 here
    if _query(operation) or "requestBody" in operation:
        responses |= refusals(422)
    if known:  # a browser without a token gets the sign-in page
        responses["401"]["content"]["text/html"] = {}
    for answer in responses.values():  # FastAPI describes a stream as one string
        if _EVENTS in answer.get("content", {}):
            answer["content"][_EVENTS] = {}
    operation["responses"] = dict(sorted(responses.items()))


def _query(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameters outside the path. Marks the lists among them as comma-separated."""
    asked = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
    for each in asked:
        kinds = each["schema"].get("anyOf", [each["schema"]])
        if any(kind.get("type") == "array" for kind in kinds):
            each["explode"] = False
    return asked


def _of_the_wire() -> dict[str, Any]:
    """The schemas of a batch and its acknowledgement, as `ampmon.wire` defines them."""
    _, schemas = msgspec.json.schema_components([wire.Batch, wire.Ack], ref_template=_REFS)
    schemas["Batch"]["properties"]["schema_version"] = {"const": wire.SCHEMA_VERSION}
    return schemas


def _portable(schema: Any) -> Any:
    """Make a schema portable: patterns in ECMAScript's syntax, and a pattern for base64."""
    if isinstance(schema, list):
        return [_portable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    portable = {
        name: _pattern(value) if name == "pattern" and isinstance(value, str) else _portable(value)
        for name, value in schema.items()
    }
    return (
        {**portable, "pattern": _BASE64}
        if portable.get("contentEncoding") == "base64"
        else portable
    )


def _pattern(written: str) -> str:
    """Replace Python's anchors with ``^`` and ``$``, and 8-digit escapes with their character."""
    anchored = re.sub(r"\\Z\Z", "$", re.sub(r"\A\\A", "^", written))
    return re.sub(r"\\U([0-9a-f]{8})", lambda found: chr(int(found[1], 16)), anchored)
