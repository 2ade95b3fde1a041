"""Callers and their scopes, and the access that each route needs: declared on its endpoint, else `admin`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope as Request


Scope = Literal["ingest", "read", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

OWN = "own"
"""The id of the data directory's own token. Other tokens have hexadecimal ids."""

ELSEWHERE = "user:"
"""The prefix of the id of a user whom a proxy authenticated; the user's name follows."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. ``owner`` owns the runs that it starts; if None, their records name the owner.

    ``projects`` are those that it sees and writes; None for all. ``token_id`` identifies its token. ``session`` is the
    cookie or page session made with that token, if the request carried one instead.
    """

    owner: str | None
    scopes: frozenset[str]
    projects: frozenset[str] | None
    token_id: str
    session: str | None = field(default=None, repr=False)

    @property
    def signed_in_elsewhere(self) -> bool:
        """Whether a proxy authenticated the caller, who has no token."""
        return self.token_id.startswith(ELSEWHERE)

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, project: str) -> bool:
        return self.projects is None or project in self.projects


OPERATOR = Caller(None, frozenset(SCOPES), None, OWN)
"""The caller with the data directory's own token."""


Access: TypeAlias = Literal[Scope, "token", "page", "public"]
"""A scope, any `token`, or `public` for none. `page` is `read`, but `public` if other sites may frame the page."""

SCOPE_OF: Mapping[Access, Scope | None] = {
    **{scope: scope for scope in SCOPES},
    "page": "read",
    "token": None,
    "public": None,
}
"""The scope that a token needs; None if the access needs no scope."""

_ACCESS = "ampmon_access"
# Some programs take U+2028 and U+2029 for line breaks.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def requires(access: Access) -> Callable[[_Endpoint], _Endpoint]:
    """Declare the access that a route needs. Place it below the route's own decorator."""

    def named(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _ACCESS, access)
        return endpoint

    return named


def required_access(route: BaseRoute) -> Access:
    """The access that a route declares, else `admin`."""
    access: Access = getattr(getattr(route, "endpoint", None), _ACCESS, "admin")
    return access


def is_plain(path: str) -> bool:
    """Whether a path has no control characters. The end of a route's pattern also matches before a line break."""
    return _CONTROL.search(path) is None


def find_route(routes: Iterable[BaseRoute], request: Request) -> BaseRoute | None:
    """The route that the router will choose for a request; None for a 404 or a 405."""
    return next((each for each in routes if each.matches(request)[0] is Match.FULL), None)


def methods(routes: Iterable[BaseRoute], request: Request) -> list[str]:
    """The methods that a request's path allows: those of all routes with the template that matches first."""
    found: dict[str, set[str]] = {}
    for each in routes:
        if isinstance(each, Route) and each.matches(request)[0] is not Match.NONE:
            found.setdefault(each.path, set()).update(each.methods or ())
    return sorted(next(iter(found.values()), ()))


OTHER = "other"
"""The name of a method or a route that this server does not have."""
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


def method_of(request: Request) -> str:
    """The request's method, or `OTHER` if it is not a known one."""
    return request["method"] if request["method"] in _METHODS else OTHER


def route_of(request: Request) -> str:
    """The template of the request's route, as ``/api/v1/runs/{run_id}``, or `OTHER`. Also works before routing."""
    route = request.get("route")
    if route is None:
        routes = request["app"].routes
        route = next((each for each in routes if each.matches(request)[0] is not Match.NONE), None)
    return str(getattr(route, "path", OTHER))
