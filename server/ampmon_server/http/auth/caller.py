"""Who calls, and what they may do: of a token, whichever way it came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args


Scope = Literal["ingest", "read", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

OWN = "own"
"""The id of the data directory's own token; those of others are hexadecimal."""

ELSEWHERE = "user:"
"""What the id begins with of a person for whom a proxy vouches; their name follows."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request may do. ``owner``: of the runs that it starts; None where their records say that.

    ``projects`` are those that it sees and writes; None for all. ``token_id`` is of the token that it came with,
    ``session`` the cookie or session that was made with that token, where one came instead.
    """

    owner: str | None
    scopes: frozenset[str]
    projects: frozenset[str] | None
    token_id: str
    session: str | None = field(default=None, repr=False)

    @property
    def signed_in_elsewhere(self) -> bool:
        """Whether a proxy vouches for them: they have no token."""
        return self.token_id.startswith(ELSEWHERE)

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, project: str) -> bool:
        return self.projects is None or project in self.projects


OPERATOR = Caller(None, frozenset(SCOPES), None, OWN)
"""Whoever has the data directory's own token."""
