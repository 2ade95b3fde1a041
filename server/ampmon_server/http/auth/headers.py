"""The headers on every answer: what a browser may do with it, and who may show it in a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send


def security_headers(frame_ancestors: Sequence[str] = ()) -> dict[str, str]:
    """By name; ``frame_ancestors`` are origins as a Content-Security-Policy writes them."""
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
    if not frame_ancestors:  # it knows no origins, and would forbid those that the policy allows
        headers["X-Frame-Options"] = "DENY"
    return headers


class Sealed:
    """A send that puts ``headers`` on, and knows whether an answer has begun."""

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
