"""Stores the digests of login codes for browsers until they are used or expire. All server processes share them."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select

from ampmon_server.store.schema.global_tables import logins


CODES_MAX = 1000
"""Maximum codes of one token."""


def keep(connection: Connection, digest: bytes, token_id: str, expires: int, now: int) -> None:
    """Store a code that is valid until ``expires``, in us since the epoch.

    At the limit of `CODES_MAX` codes, delete those of the same token that expire first.
    """
    connection.execute(delete(logins).where(logins.c.expires <= now))
    own = logins.c.token_id == token_id
    count = connection.scalar(select(func.count()).select_from(logins).where(own)) or 0
    excess = count - CODES_MAX + 1
    if excess > 0:
        first = select(logins.c.digest).where(own).order_by(logins.c.expires).limit(excess)
        going = connection.scalars(first).all()
        connection.execute(delete(logins).where(logins.c.digest.in_(going)))
    connection.execute(insert(logins).values(digest=digest, expires=expires, token_id=token_id))


def read_all(connection: Connection, now: int) -> set[bytes]:
    """Return the digests of all valid codes, at most `CODES_MAX` of each token."""
    return set(connection.scalars(select(logins.c.digest).where(logins.c.expires > now)))


def use_up(connection: Connection, digest: bytes, now: int) -> str | None:
    """Delete a code and return the id of its token, or None if the code was not valid.

    When two requests redeem the same code at once, only one gets the id.
    """
    good = delete(logins).where(logins.c.digest == digest, logins.c.expires > now)
    return connection.scalar(good.returning(logins.c.token_id))
