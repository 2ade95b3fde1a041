"""Stores access tokens, and the used login codes and signed-out sessions of browsers. All server processes share them.

Each is stored under its digest, so the database gives nobody access. There are few tokens, so a list is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, text, update

from ampmon.transport.proof import ID_LENGTH, id_of
from ampmon_server.store.engine.engine import Calls, reads, writes
from ampmon_server.store.engine.errors import NameTaken, NotFound
from ampmon_server.store.schema.global_tables import revoked_sessions, tokens


REVOKED_MAX = 100_000
"""Maximum signed-out sessions and used login codes."""
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Token:
    """The stored record of a token. Times are us since the epoch, None for never.

    ``projects`` are the projects the token gives access to, None for all. The token is invalid from ``expires`` or
    ``revoked`` on.
    """

    digest: bytes
    name: str
    owner: str
    scopes: tuple[str, ...]
    projects: tuple[str, ...] | None
    made: int
    expires: int | None = None
    last_used: int | None = None
    revoked: int | None = None

    @property
    def id(self) -> str:
        """The public id, which gives no access."""
        return id_of(self.digest)

    def is_good(self, now: int) -> bool:
        """Whether the token is neither revoked nor expired at ``now``, in us since the epoch."""
        return self.revoked is None and (self.expires is None or now < self.expires)


def keep_token(connection: Connection, token: Token) -> None:
    """Store a new token. Raises NameTaken if a valid token has the same name."""
    same = connection.execute(select(tokens).where(tokens.c.name == token.name))
    if any(_token(row).is_good(token.made) for row in same):
        raise NameTaken(f"A token named {token.name!r} exists: revoke it, or choose another name.")
    connection.execute(
        insert(tokens).values(
            **asdict(token)
            | {
                "scopes": _text(token.scopes),
                "projects": None if token.projects is None else _text(token.projects),
            }
        )
    )


def read_tokens(connection: Connection) -> list[Token]:
    """Return every token ever created, newest first."""
    rows = connection.execute(select(tokens).order_by(tokens.c.made.desc(), tokens.c.digest))
    return [_token(row) for row in rows]


def find_token(connection: Connection, token_id: str) -> Token | None:
    """Return the token with this id, valid or not, or None if there never was one."""
    row = connection.execute(select(tokens).where(_called(token_id))).first()
    return None if row is None else _token(row)


def revoke_token(connection: Connection, named: str, now: int) -> list[Token]:
    """Revoke the tokens with this id or name and return them as they were before.

    Tokens that were revoked earlier are left out. Raises NotFound if no token is left to revoke.
    """
    by = tokens.c.name == named
    condition = by | _called(named) if _is_id(named) else by
    rows = connection.execute(select(tokens).where(condition, tokens.c.revoked.is_(None)))
    found = [_token(row) for row in rows]
    if not found:
        raise NotFound(f"There is no token {named!r} to revoke.")
    digests = [each.digest for each in found]
    connection.execute(update(tokens).where(tokens.c.digest.in_(digests)).values(revoked=now))
    return found


def mark_token_used(connection: Connection, digest: bytes, now: int) -> None:
    """Record a use of a token, unless a later use is recorded."""
    later = tokens.c.last_used >= now
    earlier = tokens.c.last_used.is_(None) | ~later
    connection.execute(
        update(tokens).where(tokens.c.digest == digest, earlier).values(last_used=now)
    )


def _called(token_id: str) -> ColumnElement[bool]:
    """Match tokens by id: a range of the primary key, because the id is the start of the digest."""
    if not _is_id(token_id):
        return tokens.c.digest == b""
    begins = bytes.fromhex(token_id)
    rest = _DIGEST_BYTES - len(begins)
    return tokens.c.digest.between(begins + bytes(rest), begins + b"\xff" * rest)


def _is_id(given: str) -> bool:
    return len(given) == ID_LENGTH and not set(given) - set("0123456789abcdef")


def _text(words: Sequence[str]) -> str:
    return orjson.dumps(words).decode()


def _token(row: Row[Any]) -> Token:
    listed = {**row._mapping}
    listed["scopes"] = tuple(orjson.loads(row.scopes))
    listed["projects"] = None if row.projects is None else tuple(orjson.loads(row.projects))
    return Token(**listed)


# -- browsers ----------------------------------------------------------------------------------------------------------


_REVOKE = text(
    "INSERT INTO revoked_sessions (digest, expires) VALUES (:digest, :expires) ON CONFLICT DO NOTHING"
)


def revoke_session(connection: Connection, digest: bytes, expires: int, now: int) -> bool:
    """Revoke a session or a login code until ``expires``, in us since the epoch. Return False if it was revoked before.

    When two requests use the same code at once, only one gets True. Beyond `REVOKED_MAX`, delete those that expire
    first.
    """
    table = revoked_sessions
    connection.execute(delete(table).where(table.c.expires <= now))
    added = connection.execute(_REVOKE, {"digest": digest, "expires": expires}).rowcount
    beyond = (connection.scalar(select(func.count()).select_from(table)) or 0) - REVOKED_MAX
    if beyond > 0:
        first = select(table.c.digest).order_by(table.c.expires).limit(beyond)
        connection.execute(delete(table).where(table.c.digest.in_(first)))
    return added == 1


def is_session_revoked(connection: Connection, digest: bytes) -> bool:
    found = select(revoked_sessions.c.digest).where(revoked_sessions.c.digest == digest)
    return connection.scalar(found) is not None


class AccessCalls(Calls):
    """Calls about tokens, sessions and login codes."""

    revoke_session = writes(revoke_session)
    is_session_revoked = reads(is_session_revoked)
    keep_token = writes(keep_token)
    revoke_token = writes(revoke_token)
    mark_token_used = writes(mark_token_used)
    token = reads(find_token)
    tokens = reads(read_tokens)
