"""Codes that bring a browser in, kept by their digests until they are used or expire: for all server processes."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select

from ampmon_server.store.schema.tables import logins


CODES_MAX = 1000


def keep(connection: Connection, digest: bytes, token_id: str, expires: int, now: int) -> None:
    """Let a code be good until ``expires``, in us since the epoch. Of too many, those that end first go."""
    connection.execute(delete(logins).where(logins.c.expires <= now))
    excess = (connection.scalar(select(func.count()).select_from(logins)) or 0) - CODES_MAX + 1
    if excess > 0:
        first = select(logins.c.digest).order_by(logins.c.expires).limit(excess)
        going = connection.scalars(first).all()
        connection.execute(delete(logins).where(logins.c.digest.in_(going)))
    connection.execute(insert(logins).values(digest=digest, expires=expires, token_id=token_id))


def read_all(connection: Connection, now: int) -> set[bytes]:
    """The digests of all codes that are good: at most `CODES_MAX`."""
    return set(connection.scalars(select(logins.c.digest).where(logins.c.expires > now)))


def use_up(connection: Connection, digest: bytes, now: int) -> str | None:
    """Forget a code; the id of its token, None where it was not good. Of two who come with it at once, one has it."""
    good = delete(logins).where(logins.c.digest == digest, logins.c.expires > now)
    return connection.scalar(good.returning(logins.c.token_id))
