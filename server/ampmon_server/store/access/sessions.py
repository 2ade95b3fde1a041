"""Stores the digests of signed-out sessions until they would have expired. All server processes share them."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select

from ampmon_server.store.schema.global_tables import revoked_sessions


REVOKED_MAX = 100_000


def revoke(connection: Connection, digest: bytes, expires: int, now: int) -> None:
    """Revoke a session until ``expires``, in us since the epoch.

    At the limit of `REVOKED_MAX` sessions, delete those that expire first.
    """
    table = revoked_sessions
    connection.execute(delete(table).where((table.c.expires <= now) | (table.c.digest == digest)))
    excess = (connection.scalar(select(func.count()).select_from(table)) or 0) - REVOKED_MAX + 1
    if excess > 0:
        first = select(table.c.digest).order_by(table.c.expires).limit(excess)
        going = connection.scalars(first).all()
        connection.execute(delete(table).where(table.c.digest.in_(going)))
    connection.execute(insert(table).values(digest=digest, expires=expires))


def is_revoked(connection: Connection, digest: bytes) -> bool:
    found = select(revoked_sessions.c.digest).where(revoked_sessions.c.digest == digest)
    return connection.scalar(found) is not None
