"""Opens a database for a server: that it is the only one where it must be, and that the schema is the present one."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from sqlalchemy import URL, Engine
from sqlalchemy.exc import DatabaseError

from ampmon_server import migrations
from ampmon_server.settings import Settings
from ampmon_server.store import engine, lock, postgresql
from ampmon_server.store.errors import Busy, Unusable


def open_database(settings: Settings) -> tuple[Engine, IO[bytes] | None]:
    """The database of the settings, and the lock that keeps other servers from an SQLite file. Raises Unusable."""
    database = engine.open_engine(settings.url)
    exclusive = _exclusively(database.url) if database.dialect.name == "sqlite" else None
    try:
        with engine.writing(database) as connection:
            if database.dialect.name == "postgresql":
                postgresql.check(connection, database.url)
            migrations.upgrade(connection)
    except migrations.UnknownRevision as error:
        problem = (
            f"{_named(database.url)} was made by a newer ampmon (schema {error}): "
            "upgrade ampmon, or name another --data-dir"
        )
    except (DatabaseError, Busy) as error:
        problem = _refusal(error, database.url)
    except Unusable as error:
        problem = str(error)
    else:
        return database, exclusive
    database.dispose()
    if exclusive is not None:
        exclusive.close()
    raise Unusable(problem)


def _exclusively(url: URL) -> IO[bytes]:
    file = Path(url.database or "")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unusable(
            f"{file.parent} cannot be made ({error.strerror}): name another --data-dir"
        ) from None
    return lock.acquire(file.with_name(file.name + ".lock"))


def _named(url: URL) -> str:
    return str(url.database) if url.get_backend_name() == "sqlite" else postgresql.place(url)


def _refusal(error: BaseException, url: URL) -> str:
    cause = error.__cause__ if isinstance(error, Busy) else error
    if not isinstance(cause, DatabaseError):
        return f"{_named(url)} cannot be used: {error}"
    if url.get_backend_name() == "sqlite":
        return f"{url.database} cannot be used as a database ({cause.orig}): restore it, or name another --data-dir"
    return postgresql.refusal(cause, url)
