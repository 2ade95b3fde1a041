"""Which scope a request needs, by its method and path: one table, in which what is not named needs `admin`."""

from __future__ import annotations

import re

from ampmon_server.auth.caller import Scope


_ANY = None
_LOOK = {"GET", "HEAD"}
_NEEDS: tuple[tuple[set[str], str, Scope | None], ...] = (
    (_LOOK, r"/(healthz|readyz)", _ANY),
    (_LOOK, r"/api/v1/me", _ANY),
    ({"POST"}, r"/(api/v1/login-links|logout)", _ANY),
    ({"POST"}, r"/api/v1/ingest", "ingest"),
    # And only those of the run's owner; see `routes.callers`.
    ({"PATCH", "DELETE"}, r"/api/v1/runs/[^/]+", "ingest"),
    ({"POST"}, r"/api/v1/runs/[^/]+/alerts/[^/]+/acknowledge", "ingest"),
    ({"POST", "DELETE"}, r"/api/v1/mutes(/[^/]+)?", "ingest"),
    (_LOOK, r"/api/v1/(tokens(/.*)?|alerts/targets)", "admin"),
    (_LOOK, r"(?s:.*)", "read"),
)


def needed(method: str, path: str) -> Scope | None:
    """The scope that a request needs; None where each will do."""
    for methods, pattern, scope in _NEEDS:
        if method in methods and re.fullmatch(pattern, path):
            return scope
    return "admin"
