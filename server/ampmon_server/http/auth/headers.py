"""The security headers of every response: what a browser may do with it, and which sites may frame it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send


def security_headers(frame_ancestors: Sequence[str] = ()) -> dict[str, str]:
    """The headers by name. ``frame_ancestors`` are origins in the syntax of a Content-Security-Policy."""
    ancestors = " ".join(frame_ancestors) or "'none'"
    headers = {
        # Plotly sets styles on elements, and draws heatmaps and downloads through data: and blob: images.
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
            f"connect-src 'self'; font-src 'self'; frame-ancestors {ancestors}; base-uri 'none'; form-action 'self'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    if not frame_ancestors:  # it cannot name origins, and would forbid those that the policy allows
        headers["X-Frame-Options"] = "DENY"
    return headers


class SecurityHeadersSend:
    """A send that adds ``headers`` and records whether the response has begun."""

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._headers = headers
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            for name, value in self._headers.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-cache")
        await self._send(message)
