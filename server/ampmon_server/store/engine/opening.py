"""Opens a database for a server, for a reader or to upgrade it; or says what to do instead."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError

from ampmon.system import mounts, private
from ampmon_server.settings import Settings
from ampmon_server.store.engine import engine, postgresql, sqlite
from ampmon_server.store.engine.errors import Busy, Unusable
from ampmon_server.store.schema import migrations
from ampmon_server.store.schema.migrations import Schema


SHOWN_MAX = 3
"""So many differences of a schema are listed; the others are counted."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A database that can be used. ``before``: its schema as it was found; None for an empty one.

    ``exclusive`` is the lock that keeps other servers from an SQLite file; ``name`` is for messages.
    """

    name: str
    engine: Engine
    exclusive: IO[bytes] | None
    before: str | None

    def close(self) -> None:
        self.engine.dispose()
        if self.exclusive is not None:
            self.exclusive.close()


def open_database(settings: Settings, *, upgrading: bool = False) -> Opened:
    """The database of the settings. Raises Unusable.

    An empty database is set up. An older one is brought up to date where it is SQLite's, whose only server this is,
    or with ``upgrading``; in one transaction, so that it is wholly done or not at all.
    """
    database = engine.open_engine(settings.url)
    url = make_url(settings.url)
    if database.dialect.name == "sqlite":
        exclusive, work = _exclusively(url), _brought_up
    else:
        exclusive, work = None, _brought_up if upgrading else _opened
    try:
        before = _set_up(database, url, work)
    except Unusable:
        Opened(_named(url), database, exclusive, None).close()
        raise
    return Opened(_named(url), database, exclusive, before.revision)


def open_to_read(settings: Settings) -> Opened:
    """The database of the settings, beside whoever uses it, without a lock, and without making or changing anything.

    Raises Unusable for one that is not there, or has not this version's schema.
    """
    url = make_url(settings.url)
    name = _named(url)
    if _is_sqlite(url) and not Path(url.database or "").exists():
        raise Unusable(f"There is no database at {name}: name another --data-dir")
    opened = Opened(name, engine.open_engine(settings.url), None, None)
    try:
        with engine.reading(opened.engine) as connection:
            stands = migrations.schema(connection)
    except (Busy, DBAPIError) as error:
        opened.close()
        raise Unusable(_unreadable(error, url)) from error
    if stands.age != "current":
        opened.close()
        raise Unusable(
            f"{name} has another schema than this version's ({stands.revision or 'none'}): "
            "run ampmon db upgrade, which says what to do"
        )
    return opened


def open_beside(settings: Settings, *, alone: bool) -> Opened:
    """The database, beside whoever uses it; to be ``alone`` with an SQLite file, as a server is. Raises Unusable."""
    return open_database(settings) if alone else open_to_read(settings)


class Upgrade(NamedTuple):
    """What was done to a database. ``before`` is the schema that it had, None for an empty database."""

    database: str
    before: str | None
    after: str | None


def upgrade(settings: Settings) -> Upgrade:
    """Upgrade the schema, in one transaction. Raises Unusable or Busy, with nothing changed.

    On SQLite nobody else may use the file until the end; on PostgreSQL servers should be stopped, and another upgrade
    that is at work is waited for.
    """
    with (
        closing(open_database(settings, upgrading=True)) as opened,
        engine.reading(opened.engine) as connection,
    ):
        return Upgrade(opened.name, opened.before, migrations.schema(connection).revision)


def _set_up(database: Engine, url: URL, work: Callable[[Connection, URL], Schema]) -> Schema:
    try:
        return engine.write(database, lambda connection: work(connection, url))
    except Busy as error:
        cause = error.__cause__
        if isinstance(cause, DBAPIError):
            raise Unusable(_refusal(cause, url)) from error
        raise Unusable(f"{_named(url)} cannot be used: {error}") from error
    except DBAPIError as error:
        raise Unusable(_refusal(error, url)) from error


def _opened(connection: Connection, url: URL) -> Schema:
    """The schema of a database that other servers may use."""
    postgresql.check(connection, url)
    stands = migrations.schema(connection)
    if stands.age == "empty":
        return _brought_up(connection, url)
    if stands.age == "older":
        raise Unusable(
            f"{_named(url)} has an older schema ({stands.revision}): stop every ampmon serve that uses it, "
            f"and run ampmon db upgrade --database-url {postgresql.command_url(url)}"
        )
    _check(connection, url)
    return stands


def _brought_up(connection: Connection, url: URL) -> Schema:
    """The schema that a database had which nobody else uses now, or which is empty; now it has the newest."""
    if connection.dialect.name == "postgresql":
        postgresql.check(connection, url)
        postgresql.take_turns(connection)
    before = migrations.schema(connection)
    if before.age in {"empty", "older"}:
        migrations.upgrade(connection)
    _check(connection, url)
    return before


def _check(connection: Connection, url: URL) -> None:
    """Raises Unusable unless the schema is this version's, and nobody has changed it."""
    stands = migrations.schema(connection)
    if stands.age == "newer":
        raise Unusable(
            f"{_named(url)} was made by a newer ampmon (schema {stands.revision}): run "
            f"pip install --upgrade 'ampmon[server]', or name {_another(url)}"
        )
    if stands.age == "foreign":
        raise Unusable(
            f"{_named(url)} belongs to another program, which notes {stands.revision} as its own schema: "
            f"name {_another(url)}"
        )
    if stands.age != "current":
        raise Unusable(
            f"{_named(url)} has tables of ampmon's, and does not say of which version: "
            f"{_restore(url)}, or name {_another(url)}"
        )
    found = migrations.differences(connection)
    if found:
        rest = f"; and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
        raise Unusable(
            f"{_named(url)} is not as ampmon made it: {'; '.join(found[:SHOWN_MAX])}{rest}: "
            f"{_mend(connection, found, url)}, or name {_another(url)}"
        )


def _mend(connection: Connection, found: list[str], url: URL) -> str:
    """The commands that make missing indexes; where more is wrong, to go back to a copy."""
    commands = [migrations.command_for(connection, each) for each in found]
    if all(commands):
        return "run in it " + " ".join(f"{each};" for each in commands)
    return _restore(url)


def _restore(url: URL) -> str:
    if _is_sqlite(url):
        return f"stop what uses it and run ampmon db restore COPY --database-url sqlite:///{url.database}"
    return "restore a copy into an empty database, ampmon db restore COPY --database-url ..."


def _another(url: URL) -> str:
    return "another --data-dir" if _is_sqlite(url) else "another database in --database-url"


def _named(url: URL) -> str:
    """Which database a URL means, without any secret."""
    return str(url.database) if _is_sqlite(url) else postgresql.place(url)


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _exclusively(url: URL) -> IO[bytes]:
    file = Path(url.database or "")
    shared = mounts.network_file_system(file)
    if shared is not None:
        raise Unusable(
            f"{file} would lie on a network file system ({shared}), where SQLite's locks do not hold: put it on a disk "
            "of this machine with ampmon serve --database-url sqlite:////var/tmp/ampmon.db, or use PostgreSQL"
        )
    try:
        private.make(file.parent)
    except OSError as error:
        raise Unusable(
            f"{file.parent} cannot be made ({error.strerror}): name another --data-dir"
        ) from None
    held = sqlite.lock(file.with_name(file.name + ".lock"))
    try:
        # SQLite would make it readable by all, and its log takes over the mode.
        os.close(private.open_file(file, os.O_RDONLY | os.O_CREAT))
    except OSError as error:
        held.close()
        raise Unusable(
            f"{file} cannot be used ({error.strerror}): name another --data-dir"
        ) from None
    return held


def _unreadable(error: Busy | DBAPIError, url: URL) -> str:
    cause = error.__cause__ if isinstance(error, Busy) else error
    if not _is_sqlite(url) and isinstance(cause, DBAPIError):
        return postgresql.refusal(cause, url)
    return f"{_named(url)} cannot be used: {cause or error}"


def _refusal(error: DBAPIError, url: URL) -> str:
    if _is_sqlite(url):
        return f"{url.database} cannot be used as a database ({error.orig}): restore it, or name another --data-dir"
    return postgresql.refusal(error, url)
