"""The server's log: plain lines or JSON, each with the id of its request, and without secrets.

A request is named by its method and its route's template, because a path may contain a token by mistake. A middleware
gives each request its id, counts it, and logs one line if it was rejected or failed.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ampmon.transport.proof import PROOF_PATH
from ampmon_server.http.auth.access import method_of, route_of
from ampmon_server.http.auth.limits import Rate
from ampmon_server.http.service import Service
from ampmon_server.settings import LogFormat


REQUEST: ContextVar[str | None] = ContextVar("ampmon_request", default=None)
"""The id of the current request; None outside of requests."""
_HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIELDS = ("method", "route", "status", "seconds")
"""The extra fields of a log line about a request's outcome."""


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


ID_HEADER = "X-Request-ID"
LINES_PER_S, LINES_BURST = 5.0, 100.0
"""How many rejected requests are logged, per second and in a burst. Further ones are only counted, in one line."""
_log = logging.getLogger("ampmon_server.http.request_log")  # as docs/operations.md shows it


class RequestLogMiddleware:
    """The outermost ASGI middleware. A request's time ends when its response begins, since event streams never end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lines = Rate(LINES_PER_S, LINES_BURST)
        self._unlogged = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        given = Headers(scope=scope).get(ID_HEADER, "")
        request = given if _HARMLESS.fullmatch(given) else secrets.token_hex(8)
        # Never reset: each request has its own task, and what it raises is logged after this returns.
        REQUEST.set(request)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                service: Service = scope["app"].state.service
                headers = MutableHeaders(scope=message)
                headers[ID_HEADER] = request
                # While a server stops, its clients move to another one. A proof counts only for its own connection,
                # so the next request on it closes it.
                if service.leaving.is_set() and not scope["path"].endswith(PROOF_PATH):
                    headers["Connection"] = "close"
                self._answered(service, scope, message["status"], time.perf_counter() - begun)
            await send(message)

        await self._app(scope, receive, sent)

    def _answered(self, service: Service, scope: Scope, status: int, seconds: float) -> None:
        method, route = method_of(scope), route_of(scope)
        service.metrics.answered(method, route, status, seconds)
        if status < 400 or status == 500:  # the cause of a 500 is already logged
            return
        if self._lines.taken() > 0:
            self._unlogged += 1
            return
        if self._unlogged:
            _log.info("%d more rejected requests were not logged", self._unlogged)
            self._unlogged = 0
        level = logging.INFO if status < 500 else logging.WARNING
        why = scope.get("state", {}).get("why")  # the cause of a 503, for the operator
        fields = {"method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
        _log.log(
            level, "%s %s: %d%s", method, route, status, f": {why}" if why else "", extra=fields
        )
