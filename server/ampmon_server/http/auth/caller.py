"""The caller of a request and what it may do, however it authenticated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args


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
