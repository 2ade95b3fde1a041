"""Reads request bodies within limits of size and time, and decodes small JSON bodies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import anyio
import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from ampmon import wire
from ampmon_server.http.metrics import Reason
from ampmon_server.model.words import plural
from ampmon_server.settings import Settings


T = TypeVar("T", bound=msgspec.Struct)

_STATUS: Mapping[Reason, int] = {
    "damaged": 400,
    "encoding": 415,
    "gone": 400,
    "invalid": 422,
    "slow": 408,
    "too_large": 413,
    "type": 415,
    "version": 400,
}

_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*?)`$")
_LENGTH = re.compile(r"^Expected `str` of length ([<>]=) (\d+) ")
# In msgspec's messages these patterns are hundreds of characters that nobody can read.
CALLED = r"\A[A-Za-z0-9_.@+-]{1,64}\Z"
_NEEDS = {
    CALLED: "needs 1 to 64 letters, digits or characters of _.@+-",
    wire.VISIBLE: "needs a visible character and no control characters",
    wire.PRINTABLE: "may hold no control characters",
}


def takes(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the OpenAPI entry of a request body that is this struct as JSON."""
    _, schemas = msgspec.json.schema_components([kind], ref_template="{name}")
    (schema,) = schemas.values()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


class BodyRefused(Exception):
    """A body is rejected, for ``reason`` in the metrics. ``field`` is the part or the header at fault."""

    def __init__(self, reason: Reason, detail: str, field: str = "body") -> None:
        super().__init__(detail)
        self.reason: Reason = reason
        self.status = _STATUS[reason]
        self.field = field


async def read(
    request: Request,
    bytes_max: int,
    seconds_max: float,
    arrived: Callable[[int], object] = lambda size: None,
) -> bytes:
    """Return the whole body. Calls ``arrived`` with the size of each chunk.

    Raises BodyRefused if the body is larger or says so, if it takes longer, or if the client disconnects.
    """
    too_large = BodyRefused("too_large", f"A body holds at most {bytes_max} bytes.")
    announced = request.headers.get("content-length", "")
    # Of 18 digits at most: Python needs quadratic time for a number of any length.
    if announced.isascii() and announced.isdigit() and int(announced[:18]) > bytes_max:
        raise too_large
    body = bytearray()
    try:
        with anyio.fail_after(seconds_max):
            async for chunk in request.stream():
                body += chunk
                if len(body) > bytes_max:
                    raise too_large
                arrived(len(chunk))
    except ClientDisconnect:  # nobody reads this answer
        raise BodyRefused("gone", "The client went away.") from None
    except TimeoutError:
        raise BodyRefused("slow", "The body did not arrive in time.") from None
    return bytes(body)


def fault(error: Exception) -> tuple[str, str]:
    """Return what is wrong with a body by an error of msgspec, and the field: "body" if it names none."""
    words = str(error)
    path = _PATH.search(words)
    field = path[1] if path and path[1] else "body"
    needs = next((needs for pattern, needs in _NEEDS.items() if repr(pattern) in words), None)
    if length := _LENGTH.match(words):
        needs = f"needs at {'most' if length[1] == '<=' else 'least'} {plural(int(length[2]), 'character')}"
    return (f"{field} {needs}." if needs else words), field


async def read_json(request: Request, settings: Settings, kind: type[T], bytes_max: int) -> T:
    """Return the body as a ``kind``. Raises BodyRefused if it is invalid, late or larger than ``bytes_max``."""
    body = await read(request, bytes_max, settings.body_seconds_max)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BodyRefused("invalid", *fault(error)) from None
