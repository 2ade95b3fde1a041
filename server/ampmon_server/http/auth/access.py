"""The access that each route needs: named on its endpoint, and `admin` where an endpoint names none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar

from starlette.routing import BaseRoute, Match
from starlette.types import Scope as Request

from ampmon_server.http.auth.caller import Scope


Access: TypeAlias = Literal[Scope, "token", "page", "public"]
"""A scope; or any `token`; `public`: no token; `page`: `read`, and `public` where other sites may frame the page."""

SCOPE_OF: Mapping[Access, Scope | None] = {
    "ingest": "ingest",
    "read": "read",
    "admin": "admin",
    "page": "read",
    "token": None,
    "public": None,
}
"""The scope that a token needs; None where every token will do."""

_ACCESS = "ampmon_access"
# U+2028 and U+2029 are line breaks too, to some.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def requires(access: Access) -> Callable[[_Endpoint], _Endpoint]:
    """Name the access that a route needs. Stands below the route's own decorator."""

    def named(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _ACCESS, access)
        return endpoint

    return named


def named_access(route: BaseRoute) -> Access | None:
    """The access that a route names; None where it names none."""
    return getattr(getattr(route, "endpoint", None), _ACCESS, None)


def required_access(route: BaseRoute) -> Access:
    """The access that a route needs."""
    return named_access(route) or "admin"


def is_plain(path: str) -> bool:
    """Whether a path holds no control characters: the end of a route's pattern also matches before a line break."""
    return _CONTROL.search(path) is None


def find_route(routes: Iterable[BaseRoute], request: Request) -> BaseRoute | None:
    """The route that answers a request, found as the router finds it; None for a 404 or a 405."""
    return next((each for each in routes if each.matches(request)[0] is Match.FULL), None)


def methods(routes: Iterable[BaseRoute], request: Request) -> list[str]:
    """The methods that there are for a request's path: those of all routes with the template that matches first."""
    matching = [each for each in routes if each.matches(request)[0] is not Match.NONE]
    of_one = [
        each
        for each in matching
        if getattr(each, "path", None) == getattr(matching[0], "path", None)
    ]
    return sorted({method for each in of_one for method in getattr(each, "methods", None) or ()})
