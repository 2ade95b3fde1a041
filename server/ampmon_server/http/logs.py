"""The server's log: plain lines or JSON, each with the id of its request, and without secrets.

A request is named by its method and its route's template, because a path may contain a token by mistake.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any

from starlette.routing import Match
from starlette.types import Scope

from ampmon_server.settings import LogFormat


OTHER = "other"
"""The name of a method or a route that this server does not have."""
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})

REQUEST: ContextVar[str | None] = ContextVar("ampmon_request", default=None)
"""The id of the current request; None outside of requests."""
_HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIELDS = ("method", "route", "status", "seconds")
"""The extra fields of a log line about a request's outcome."""


def request_id(given: str | None) -> str:
    """The id that a caller gave its request if it is short and harmless, else a new one."""
    return given if given and _HARMLESS.fullmatch(given) else secrets.token_hex(8)


def method_of(scope: Scope) -> str:
    """The request's method, or `OTHER` if it is not a known one."""
    return scope["method"] if scope["method"] in _METHODS else OTHER


def route_of(scope: Scope) -> str:
    """The template of the request's route, as ``/api/v1/runs/{run_id}``, or `OTHER`. Also works before routing."""
    route = scope.get("route")
    if route is None:
        routes = scope["app"].routes
        route = next((each for each in routes if each.matches(scope)[0] is not Match.NONE), None)
    return str(getattr(route, "path", OTHER))


def set_up(form: LogFormat) -> None:
    """Write this process's log to stderr. Call it once, from a program: it replaces the root logger's handlers."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ampmon_server").setLevel(logging.INFO)


class _Text(logging.Formatter):
    """Formats a record as its message followed by the request's id."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        words, request = super().formatMessage(record), REQUEST.get()
        return words if request is None else f"{words} [{request}]"


class _Json(logging.Formatter):
    """Formats a record as one JSON object per line, with the request, outcome and exception if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields: Mapping[str, Any] = {
            "request": REQUEST.get(),
            **{name: getattr(record, name, None) for name in _FIELDS},
            "exception": self.formatException(record.exc_info) if record.exc_info else None,
        }
        line |= {name: value for name, value in fields.items() if value is not None}
        # Not orjson, which fails at a lone surrogate, as in the name of a file.
        return json.dumps(line)
