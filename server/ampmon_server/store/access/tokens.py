"""Stores access tokens by their digests, so the database reveals no token.

There are few tokens, so a list is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Row, insert, or_, select, update

from ampmon.transport.proof import ID_LENGTH, id_of
from ampmon_server.store.engine.errors import NameTaken, NotFound
from ampmon_server.store.schema.global_tables import tokens


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


def keep(connection: Connection, token: Token) -> None:
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


def read_all(connection: Connection) -> list[Token]:
    """Return every token ever created, newest first."""
    rows = connection.execute(select(tokens).order_by(tokens.c.made.desc(), tokens.c.digest))
    return [_token(row) for row in rows]


def find(connection: Connection, token_id: str) -> Token | None:
    """Return the token with this id, valid or not, or None if there never was one."""
    row = connection.execute(select(tokens).where(_called(token_id))).first()
    return None if row is None else _token(row)


def revoke(connection: Connection, named: str, now: int) -> list[Token]:
    """Revoke the tokens with this id or name and return them as they were before.

    Tokens that were revoked earlier are left out. Raises NotFound if no token is left to revoke.
    """
    by = tokens.c.name == named
    condition = or_(by, _called(named)) if _is_id(named) else by
    rows = connection.execute(select(tokens).where(condition, tokens.c.revoked.is_(None)))
    found = [_token(row) for row in rows]
    if not found:
        raise NotFound(f"There is no token {named!r} to revoke.")
    digests = [each.digest for each in found]
    connection.execute(update(tokens).where(tokens.c.digest.in_(digests)).values(revoked=now))
    return found


def mark_used(connection: Connection, digest: bytes, now: int) -> None:
    """Record a use of a token, unless a later use is recorded."""
    later = tokens.c.last_used >= now
    earlier = or_(tokens.c.last_used.is_(None), ~later)
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
