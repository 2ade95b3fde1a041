"""The server's log: plain lines or JSON, each with the id of the request that it is of. Nothing secret is put in.

A request is named by its method and its route's template: a path may hold a token that somebody took for a name.
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
"""The method or the route of a request that has none of this server's."""
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})

REQUEST: ContextVar[str | None] = ContextVar("ampmon_request", default=None)
"""The id of the request that is being answered; None outside of any."""
_HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIELDS = ("method", "route", "status", "seconds")
"""What a line about a request's outcome has beside its words."""


def request_id(given: str | None) -> str:
    """The id that a caller gave its request, where it is short and harmless; else a new one."""
    return given if given and _HARMLESS.fullmatch(given) else secrets.token_hex(8)


def method_of(scope: Scope) -> str:
    """The request's method, of those that there are."""
    return scope["method"] if scope["method"] in _METHODS else OTHER


def route_of(scope: Scope) -> str:
    """The template of the request's route, as ``/api/v1/runs/{run_id}``, also where it was refused before routing."""
    route = scope.get("route")
    if route is None:
        routes = scope["app"].routes
        route = next((each for each in routes if each.matches(scope)[0] is not Match.NONE), None)
    return str(getattr(route, "path", OTHER))


def set_up(form: LogFormat) -> None:
    """Write this process's log to stderr; to be called once, by a program of its own."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ampmon_server").setLevel(logging.INFO)


class _Text(logging.Formatter):
    """The words, and the request's id."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        words, request = super().formatMessage(record), REQUEST.get()
        return words if request is None else f"{words} [{request}]"


class _Json(logging.Formatter):
    """One object a line: time, level, logger, message; request, outcome and exception where there are any."""

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
        return json.dumps(
            line
        )  # in ASCII: orjson would fail at half a character, as of a file's name
