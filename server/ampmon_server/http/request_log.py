"""Gives each request an id, counts it, logs one line if it was rejected or failed, and ends connections at a stop."""

from __future__ import annotations

import logging
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ampmon.transport.proof import PROOF_PATH
from ampmon_server.http import logs
from ampmon_server.http.auth.limits import Rate
from ampmon_server.http.service import Service


ID_HEADER = "X-Request-ID"
LINES_PER_S, LINES_BURST = 5.0, 100.0
"""How many rejected requests are logged, per second and in a burst. Further ones are only counted, in one line."""
_log = logging.getLogger(__name__)


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
        request = logs.request_id(Headers(scope=scope).get(ID_HEADER))
        # Never reset: each request has its own task, and what it raises is logged after this returns.
        logs.REQUEST.set(request)

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
        method, route = logs.method_of(scope), logs.route_of(scope)
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
