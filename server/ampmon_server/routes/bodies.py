"""Reads a small body of JSON into what it is to be, or says what is wrong with it."""

from __future__ import annotations

from typing import TypeVar

import anyio
import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ampmon_server.problems import problem
from ampmon_server.service import Service


T = TypeVar("T", bound=msgspec.Struct)


async def read_json(
    request: Request, service: Service, kind: type[T], bytes_max: int
) -> T | Response:
    """The body as a ``kind``, or the answer to one that is none, is late, or holds more than ``bytes_max`` bytes."""
    body = bytearray()
    try:
        with anyio.fail_after(service.settings.body_seconds_max):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    return problem(413, f"At most {bytes_max} bytes.", field="body")
    except ClientDisconnect:  # nobody reads it
        return problem(400, "The client went away.", field="body")
    except TimeoutError:
        return problem(408, "The body did not arrive in time.", field="body")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return problem(422, str(error), field="body")
