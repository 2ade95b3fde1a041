"""The path under which a proxy shows the server, taken off where the proxy left it on."""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class BasePath:
    """ASGI middleware before all else: what follows sees addresses as if there were no ``base_path``.

    Addresses without it are left as they are: of a proxy that takes it off, and of callers on the same machine.
    """

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if self._base_path and path.startswith(f"{self._base_path}/"):
            scope["path"] = path[
                len(self._base_path) :
            ]  # in place, for the others to see the route too
        elif self._base_path and path == self._base_path and scope["type"] == "http":
            # The page's own addresses are relative to it, as to a directory.
            await RedirectResponse(f"{path}/", 308)(scope, receive, send)
            return
        await self._app(scope, receive, send)
