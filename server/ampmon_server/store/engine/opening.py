"""Opens a database for a server, for reading or for an upgrade. Errors say what to do instead."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from ampmon.system import mounts, private
from ampmon_server.settings import Settings
from ampmon_server.store.engine import engine, postgresql, sqlite
from ampmon_server.store.engine.errors import Busy, StoreError, Unreadable, Unusable
from ampmon_server.store.schema import migrations
from ampmon_server.store.schema.migrations import Schema


SHOWN_MAX = 3
"""The most schema differences that a message lists. It counts the others."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open database. ``name`` is for messages.

    ``exclusive`` is the lock that keeps other servers from an SQLite file. ``before`` is the schema revision that
    `open_database` found, None for an empty database.
    """

    name: str
    engine: Engine
    exclusive: IO[bytes] | None
    before: str | None

    def close(self) -> None:
        self.engine.dispose()
        if self.exclusive is not None:
            self.exclusive.close()


def url_of(settings: Settings) -> URL:
    """The URL of the database of the settings. Raises Unusable without quoting the URL, which may hold a password."""
    if not settings.database_url:
        # Not from text: in a URL, % and ? are not what they are in a path.
        return URL.create("sqlite", database=str(settings.database_file))
    with suppress(ArgumentError, ValueError):
        url = make_url(settings.database_url)
        # With another @, messages would show the rest of the password as the host or database.
        if url.password is None or "@" not in f"{url.host}{url.database}":
            return url
    raise Unusable(
        "--database-url: write an SQLAlchemy URL, such as sqlite:////data/ampmon.db or "
        f"{postgresql.DRIVER}://user@host:5432/ampmon; in a password, write @ / : % as %40 %2F %3A %25"
    )


def open_database(settings: Settings, *, upgrading: bool = False) -> Opened:
    """Open the database of the settings. Raises Unusable.

    An empty database is set up. An older schema is upgraded on SQLite, where no other server can use the file, or with
    ``upgrading``. Both happen in one transaction, so a failure changes nothing.
    """
    url = url_of(settings)
    database = engine.open_engine(url)
    exclusive = _exclusively(url) if _is_sqlite(url) else None
    try:
        before = _set_up(database, url, alone=upgrading or exclusive is not None)
    except Unusable:
        Opened(_named(url), database, exclusive, None).close()
        raise
    return Opened(_named(url), database, exclusive, before.revision)


def open_to_read(settings: Settings, *, alone: bool = False) -> Opened:
    """Open the database of the settings while servers may use it, without a lock and without changing anything.

    With ``alone``, open it as a server does. Raises Unusable if it does not exist or does not have this version's
    schema.
    """
    url = url_of(settings)
    _check_exists(url)
    if alone:
        return open_database(settings)
    opened = Opened(_named(url), engine.open_engine(url), None, None)
    try:
        with engine.reading(opened.engine) as connection:
            stands = migrations.schema(connection)
    except (StoreError, DBAPIError) as error:
        opened.close()
        raise Unusable(_refusal(error, url)) from error
    if stands.age != "current":
        opened.close()
        raise Unusable(
            f"{opened.name} does not have this version's schema (found: {stands.revision or 'none'}): "
            "run ampmon db upgrade, which upgrades it or says what to do"
        )
    return opened


class Upgrade(NamedTuple):
    """The result of an upgrade: schema revisions ``before``, None for an empty database, and ``after``."""

    database: str
    before: str | None
    after: str | None


def upgrade(settings: Settings) -> Upgrade:
    """Upgrade the schema in one transaction. Raises Unusable or Busy, with nothing changed.

    Locks an SQLite file until the end. On PostgreSQL, stop all servers first; a running upgrade is waited for.
    """
    _check_exists(url_of(settings))
    with (
        closing(open_database(settings, upgrading=True)) as opened,
        engine.reading(opened.engine) as connection,
    ):
        return Upgrade(opened.name, opened.before, migrations.schema(connection).revision)


def _check_exists(url: URL) -> None:
    """Raise Unusable if there is no SQLite file. Opening it would create one, as in a mistyped directory."""
    if _is_sqlite(url) and not Path(url.database or "").exists():
        raise Unusable(
            f"There is no database at {_named(url)}: pass another --data-dir, or a --database-url"
        )


def _set_up(database: Engine, url: URL, *, alone: bool) -> Schema:
    try:
        return engine.write(database, lambda connection: _brought_up(connection, url, alone=alone))
    except (Busy, Unreadable, DBAPIError) as error:
        raise Unusable(_refusal(error, url)) from error


def _brought_up(connection: Connection, url: URL, *, alone: bool) -> Schema:
    """Set up an empty database, and upgrade an older one if it is ``alone``: no other server uses it.

    Return the schema that it had before. Raises Unusable unless it has this version's now.
    """
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql:
        postgresql.check(connection, url)
    before = migrations.schema(connection)
    if is_postgresql and (alone or before.age == "empty"):
        postgresql.lock_schema(connection)
        before = migrations.schema(connection)  # another server may have changed it meanwhile
    if before.age == "older" and not alone:
        raise Unusable(
            f"{_named(url)} has an older schema ({before.revision}): stop every ampmon serve that uses it, "
            f"and run ampmon db upgrade --database-url {postgresql.command_url(url)}"
        )
    if before.age in {"empty", "older"}:
        migrations.upgrade(connection)
    _check(connection, url)
    return before


_MOVE = "export its runs with that commit, and import them into a new database"


def of_other_version(stands: Schema, name: str) -> str | None:
    """Say what to do with a database of a newer version, or of a commit before the first release; else None."""
    if stands.age == "newer":
        return f"{name} is of a newer ampmon (schema {stands.revision}): upgrade ampmon"
    if stands.age == "earlier":
        return f"{name} is of an earlier commit of ampmon (schema {stands.revision}): {_MOVE}"
    return None


def _check(connection: Connection, url: URL) -> None:
    """Raise Unusable unless the schema is this version's and unmodified."""
    stands = migrations.schema(connection)
    other = of_other_version(stands, _named(url))
    if other is not None:
        raise Unusable(f"{other}, or pass {_another(url)}")
    if stands.age == "foreign":
        raise Unusable(
            f"{_named(url)} belongs to another program, whose schema is {stands.revision}: pass {_another(url)}"
        )
    if stands.age != "current":
        raise Unusable(
            f"{_named(url)} has ampmon tables, but its schema version is unclear: "
            f"{_restore(url)}, or pass {_another(url)}"
        )
    found = migrations.differences(connection)
    if found:
        rest = f"; and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
        raise Unusable(
            f"{_named(url)} does not match ampmon's schema: {'; '.join(found[:SHOWN_MAX])}{rest}: "
            f"{_mend(connection, found, url)}, or pass {_another(url)}"
        )


def _mend(connection: Connection, found: list[str], url: URL) -> str:
    """The commands that create missing indexes, or, if more is wrong, the advice to move the runs or restore a copy."""
    commands = [migrations.command_for(connection, each) for each in found]
    if all(commands):
        return "in that database, run " + " ".join(f"{each};" for each in commands)
    return f"if an earlier commit of ampmon made it, {_MOVE}; else {_restore(url)}"


def _restore(url: URL) -> str:
    if _is_sqlite(url):
        return (
            f"stop the programs that use it, and run ampmon db restore COPY --database-url '{url}'"
        )
    return "restore COPY into an empty database (ampmon db restore says how)"


def _another(url: URL) -> str:
    return "another --data-dir" if _is_sqlite(url) else "another database in --database-url"


def _named(url: URL) -> str:
    """Names the database of a URL without any secret."""
    return str(url.database) if _is_sqlite(url) else postgresql.place(url)


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _exclusively(url: URL) -> IO[bytes]:
    file = Path(url.database or "")
    shared = mounts.network_file_system(file)
    if shared is not None:
        raise Unusable(
            f"{file} would be on a network file system ({shared}), where SQLite's locks do not work: put it on a disk "
            "of this machine with ampmon serve --database-url sqlite:////var/tmp/ampmon.db, or use PostgreSQL"
        )
    try:
        private.make(file.parent)
    except OSError as error:
        raise Unusable(
            f"{file.parent} cannot be created ({error.strerror}): pass another --data-dir"
        ) from None
    # A file of its own: `restore` holds the lock while it renames a copy over the database.
    held = sqlite.lock(file.with_name(file.name + ".lock"))
    try:
        # SQLite would make the file readable by all, and would open one that it cannot write: until the first batch,
        # nobody would know. Its log copies the mode of the file.
        # Before SQLite opens it: closing any descriptor of a file drops the process's POSIX locks.
        os.close(private.open_file(file, os.O_RDWR | os.O_CREAT))
    except OSError as error:
        held.close()
        raise Unusable(
            f"{file} cannot be used ({error.strerror}): pass another --data-dir"
        ) from None
    return held


def _refusal(error: StoreError | DBAPIError, url: URL) -> str:
    cause = error.__cause__ if isinstance(error, StoreError) else error
    if not isinstance(cause, (DBAPIError, UnicodeDecodeError)):
        return f"{_named(url)} cannot be used: {error}"
    if isinstance(cause, DBAPIError) and not _is_sqlite(url):
        return postgresql.refusal(cause, url)
    # A full disk or a lock damages nothing, and a restored copy would be older.
    advice = "check the free space and the rights of its folder"
    if sqlite.is_damage(cause):
        advice = "restore it"
    elif sqlite.is_conflict(cause):
        advice = "stop the other program that uses it"
    said = getattr(cause, "orig", cause)
    return f"{url.database} cannot be used as a database ({said}): {advice}, or pass another --data-dir"
