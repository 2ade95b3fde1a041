"""A hostile server: the real app, with faults around each ingest request."""

from __future__ import annotations

from typing import Any

from ampmon.transport import INGEST_PATH
from campaigns.faults import seams


STATUSES = {"401", "413", "429", "500", "503"}


class Hostile:
    """Wraps the app. Each ingest is an operation `request` of the armed trap."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = seams.trap.due("request") if is_ingest(scope) and seams.trap is not None else None
        if kind is None:
            await self._app(scope, receive, send)
            return
        body = await body_of(receive)
        if kind == "double":
            await self._app(scope, replayed(body), nowhere)
            await self._app(scope, replayed(body), send)
        elif kind in STATUSES:
            await answer(send, int(kind), b"{}")
        elif kind == "garbage":
            await answer(send, 200, b"<html>It works!</html>")
        elif kind == "stored, 500":
            await self._app(scope, replayed(body), nowhere)
            await answer(send, 500, b"{}")
        elif kind == "lost ack":
            await self._app(scope, replayed(body), nowhere)
            await answer(send, 200, b'{"acked"', cut=True)
        else:
            raise ValueError(kind)


def is_ingest(scope: Any) -> bool:
    return bool(scope["type"] == "http" and scope["path"] == INGEST_PATH)


async def body_of(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def replayed(body: bytes) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def nowhere(message: Any) -> None:
    """Drop an answer."""


async def answer(send: Any, status: int, body: bytes, *, cut: bool = False) -> None:
    length = len(body) + 100 * cut
    headers = [(b"content-length", str(length).encode()), (b"retry-after", b"0.1")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": cut})
