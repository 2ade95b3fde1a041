"""Strips the path under which a proxy serves this server, if the proxy left it on."""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class BasePath:
    """ASGI middleware that strips ``base_path`` from request paths before the guard and the routes see them.

    Paths without it stay unchanged: they come from a proxy that strips it, or from callers on this machine.
    """

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if self._base_path and path.startswith(f"{self._base_path}/"):
            # In place, so that outer middleware sees the route too.
            scope["path"] = path[len(self._base_path) :]
        elif self._base_path and path == self._base_path and scope["type"] == "http":
            # The page's own addresses are relative, so its address must end in a slash.
            await RedirectResponse(f"{path}/", 308)(scope, receive, send)
            return
        await self._app(scope, receive, send)
