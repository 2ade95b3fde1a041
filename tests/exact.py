"""Requests to an app in this process with exactly the given path, which an HTTP client would normalise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from fastapi import FastAPI
from starlette.types import Message


Answer = tuple[int, dict[bytes, bytes], bytes]
"""(status, headers, body)."""


def ask(app: FastAPI, method: str, path: str) -> Answer:
    return ask_each(app, method, [path])[path]


def ask_each(
    app: FastAPI, method: str, paths: Iterable[str], authorization: bytes | None = None
) -> dict[str, Answer]:
    """The answers to several paths, on one event loop: one loop per path would take longer than the answers."""

    more = [] if authorization is None else [(b"authorization", authorization)]

    async def answers() -> dict[str, Answer]:
        return {path: await answer(app, method, path, more) for path in paths}

    return asyncio.run(answers())


async def answer(
    app: FastAPI, method: str, path: str, more: Sequence[tuple[bytes, bytes]]
) -> Answer:
    sent: list[Message] = []
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8267"), *more],
    }
    bodies: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if not bodies:
            await asyncio.Event().wait()  # the client stays connected
        return bodies.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], dict(sent[0]["headers"]), body
