"""Each request gets an id, is counted, and is described in one line of the log where it was refused or failed."""

from __future__ import annotations

import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ampmon_server.http import logs
from ampmon_server.http.auth.rates import Rate
from ampmon_server.http.metrics import Metrics


ID_HEADER = "X-Request-ID"
LINES_PER_S, LINES_BURST = 5.0, 100.0
"""So many refusals are lines of the log; those beyond are counted in a line."""
_log = logging.getLogger(__name__)


class Watched:
    """ASGI middleware before all else. A request's time is that until its answer begins: an event stream never ends."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._lines = Rate(LINES_PER_S, LINES_BURST)
        self._unlogged = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        request = logs.request_id(Headers(scope=scope).get(ID_HEADER))
        # Never taken back: a request is a task of its own, and what it raises is logged by whoever runs it.
        logs.REQUEST.set(request)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[ID_HEADER] = request
                self._answered(scope, message["status"], time.perf_counter() - begun)
            await send(message)

        await self._app(scope, receive, sent)

    def _answered(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = logs.method_of(scope), logs.route_of(scope)
        self._metrics.answered(method, route, status, seconds)
        if status < 400 or status == 500:  # whoever answers 500 has logged why
            return
        if self._lines.taken() > 0:
            self._unlogged += 1
            return
        if self._unlogged:
            _log.info("%d more requests were refused than were logged", self._unlogged)
            self._unlogged = 0
        level = logging.INFO if status < 500 else logging.WARNING
        why = scope.get("state", {}).get("why")  # of a 503: for whoever runs the server
        fields = {"method": method, "route": route, "status": status, "seconds": round(seconds, 6)}
        _log.log(
            level, "%s %s: %d%s", method, route, status, f": {why}" if why else "", extra=fields
        )
