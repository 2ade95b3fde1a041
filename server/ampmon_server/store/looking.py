"""Opens a database to be read only: beside whoever uses it, without a lock, and without making or changing anything."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import DBAPIError

from ampmon_server import migrations
from ampmon_server.settings import Settings
from ampmon_server.store import engine, opening, postgresql
from ampmon_server.store.errors import Busy, Unusable
from ampmon_server.store.opening import Opened


def open_to_read(settings: Settings) -> Opened:
    """The database of the settings. Raises Unusable for one that is not there, or has not this version's schema."""
    url = make_url(settings.url)
    name = _named(url)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        raise Unusable(f"There is no database at {name}: name another --data-dir")
    opened = Opened(name, engine.open_engine(settings.url), None, None)
    try:
        with engine.reading(opened.engine) as connection:
            stands = migrations.schema(connection)
    except (Busy, DBAPIError) as error:
        opened.close()
        raise Unusable(_refusal(error, url)) from error
    if stands.age != "current":
        opened.close()
        raise Unusable(
            f"{name} has another schema than this version's ({stands.revision or 'none'}): "
            "run ampmon db upgrade, which says what to do"
        )
    return opened


def open_beside(settings: Settings, *, alone: bool) -> Opened:
    """The database, beside whoever uses it; to be ``alone`` with an SQLite file, as a server is. Raises Unusable."""
    return opening.open_database(settings) if alone else open_to_read(settings)


def _named(url: URL) -> str:
    return str(url.database) if url.get_backend_name() == "sqlite" else postgresql.place(url)


def _refusal(error: Busy | DBAPIError, url: URL) -> str:
    cause = error.__cause__ if isinstance(error, Busy) else error
    if url.get_backend_name() == "postgresql" and isinstance(cause, DBAPIError):
        return postgresql.refusal(cause, url)
    return f"{_named(url)} cannot be used: {cause or error}"


def take_time(connection: Connection) -> None:
    """Let a transaction take as long as it needs."""
    if connection.dialect.name == "postgresql":
        postgresql.take_time(connection)
