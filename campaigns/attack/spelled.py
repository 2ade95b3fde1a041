"""Other spellings of every route's path: none bypasses the scope that the route requires."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

from fastapi.routing import APIRoute

from ampmon_server.http.app import all_routes
from ampmon_server.http.auth.access import required_access
from campaigns.attack.raw import Answer, Wire
from campaigns.attack.tally import Tally, every


ENDS = (
    "%0A",
    "%0D%0A",
    "%00",
    "%09",
    "%20",
    "%E2%80%A8",
    "%C2%85",
    "/",
    "//",
    "/.",
    "/..",
    ";",
    ";x=y",
    "%3B",
    "%3F",
    "%23",
    "%2F",
    "%5C",
    ".json",
    "~",
    "%",
    "%zz",
    "%C0%AE",
    "%ED%A0%80",
    "%FF",
)
BEFORE = (
    "/",
    "//",
    "/./",
    "/x/../",
    "/%2e/",
    "/x/%2e%2e/",
    "/%2F",
    "/;/",
    "/..;/",
    "\\",
    "/%5c",
    "/login/..",
    "/healthz/..",
    "http://evil.example/",
)


def walk(tally: Tally, wire: Wire, read_token: str, base_path: str, nth: int = 1) -> None:
    """Request every spelling of every route without a token, and those of `admin` routes with a read token."""
    strangers = [
        (method, path)
        for method, path, access in _paths()
        if access != "public"
        for path in spellings(path, base_path)
    ]
    reading = [
        (method, path)
        for method, path, access in _paths()
        if access == "admin"
        for path in spellings(path, base_path)
    ]
    bearer = ("Authorization", f"Bearer {read_token}")
    tally.each(
        "another spelling of a path, without a token",
        every(strangers, nth),
        lambda each: _closed(wire.ask(*each)),
        at_once=64,
    )
    tally.each(
        "another spelling of a path, with too small a scope",
        every(reading, nth),
        lambda each: _closed(wire.ask(*each, bearer)),
        at_once=64,
    )


def spellings(path: str, base_path: str = "") -> Iterator[str]:
    """Other spellings of a path, never the path itself."""
    for end in ENDS:
        yield path + end
    for before in BEFORE:
        yield before + (path[1:] if before.endswith("/") else path)
    yield path.upper() if path.upper() != path else f"{path}x"
    yield "/" + "".join(f"%{ord(each):02X}" for each in path[1:]) + "%2f"
    yield path.replace("/", "//")
    yield path.replace("/", "%2F")
    yield path[:-1] + f"%25{ord(path[-1]):02x}"
    yield from (
        f"{base_path}{base_path}{path}",
        f"{base_path}/..{path}",
        f"{base_path}/{path}",
        f"{base_path}%2F{path}",
    )


def _paths() -> Iterator[tuple[str, str, str]]:
    for route in all_routes():
        assert isinstance(route, APIRoute)
        for method in route.methods or ():
            path = route.path.replace(":path}", "}").format(
                run_id=uuid4(),
                version=1,
                name="scale",
                rule="skip_rate",
                id="0" * 12,
                mute_id=uuid4(),
            )
            yield method, path, required_access(route)


def _closed(answer: Answer) -> object:
    """Return None for a refusal or a redirect to a path of the server, else the answer."""
    if answer.status in {0, 400, 401, 403, 404, 405, 421, 429}:
        return None
    # A browser takes // and /\\ for the beginning of another host.
    stays = re.match(r"/(?![/\\])", answer.first("location"))
    return None if answer.status == 308 and stays else answer
