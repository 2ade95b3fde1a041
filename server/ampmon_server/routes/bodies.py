"""Reads a small body of JSON into what it is to be, or says what is wrong with it."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from ampmon_server.problems import problem


T = TypeVar("T", bound=msgspec.Struct)


async def read_json(request: Request, kind: type[T], bytes_max: int) -> T | Response:
    """The body as a ``kind``, or the answer to one that is none, or holds more than ``bytes_max`` bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            return problem(413, f"At most {bytes_max} bytes.", field="body")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return problem(422, str(error), field="body")
