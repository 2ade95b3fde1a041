"""Access tokens, kept by their digests: whoever reads the database has none of them. Few, so a list is read whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Row, insert, or_, select, update

from ampmon.transport.proof import ID_LENGTH, id_of
from ampmon_server.store.engine.errors import NameTaken, NotFound
from ampmon_server.store.schema.tables import tokens


_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token. Times are us since the epoch, null where that never was or never will be.

    ``projects`` are those that it opens; null for all. It is of no use from ``expires`` or ``revoked`` on.
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
        """What it is called in public: it opens nothing."""
        return id_of(self.digest)

    def is_good(self, now: int) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or now < self.expires)


def keep(connection: Connection, token: Token) -> None:
    """Keep a new token. Raises NameTaken where one that is still good has its name."""
    same = connection.execute(select(tokens).where(tokens.c.name == token.name))
    if any(_token(row).is_good(token.made) for row in same):
        raise NameTaken(f"There is a token called {token.name!r}: revoke it, or take another name.")
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
    """Every token that was ever made, the newest first."""
    rows = connection.execute(select(tokens).order_by(tokens.c.made.desc(), tokens.c.digest))
    return [_token(row) for row in rows]


def find(connection: Connection, token_id: str) -> Token | None:
    """The token with this id, good or not; None for one that never was."""
    row = connection.execute(select(tokens).where(_called(token_id))).first()
    return None if row is None else _token(row)


def revoke(connection: Connection, named: str, now: int) -> list[Token]:
    """Revoke the tokens with this id or name; as they were, those revoked before left out. Raises NotFound."""
    by = tokens.c.name == named
    condition = or_(by, _called(named)) if _is_id(named) else by
    rows = connection.execute(select(tokens).where(condition, tokens.c.revoked.is_(None)))
    found = [_token(row) for row in rows]
    if not found:
        raise NotFound(f"There is no token {named!r} that could be revoked.")
    digests = [each.digest for each in found]
    connection.execute(update(tokens).where(tokens.c.digest.in_(digests)).values(revoked=now))
    return found


def mark_used(connection: Connection, digest: bytes, now: int) -> None:
    """Note that a token was used, unless a later use is noted."""
    later = tokens.c.last_used >= now
    earlier = or_(tokens.c.last_used.is_(None), ~later)
    connection.execute(
        update(tokens).where(tokens.c.digest == digest, earlier).values(last_used=now)
    )


def _called(token_id: str) -> ColumnElement[bool]:
    """By the key, of which the id is the beginning."""
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
