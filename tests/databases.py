"""Cheap test databases: PostgreSQL databases are emptied and reused, and engines share compiled statements."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, event, make_url
from sqlalchemy.util import LRUCache

from ampmon_server.settings import Settings
from ampmon_server.store import Store, Verification
from ampmon_server.store.engine.opening import Opened
from ampmon_server.store.schema import migrations
from ampmon_server.store.schema.tables import metadata
from postgres import Postgres


COMPILED_MAX = 1500

DEFINITIONS = {
    "sqlite": "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY 1, 2",
    # Every catalog row has the transaction that wrote it (xmin), so any change of a schema shows.
    "postgresql": " UNION ALL ".join(
        f"SELECT '{catalog}', count(*), md5(string_agg(xmin::text, ',' ORDER BY ctid)) FROM {catalog}"
        for catalog in (
            "pg_class",
            "pg_attribute",
            "pg_constraint",
            "pg_trigger",
            "pg_db_role_setting",
        )
    ),
}
"""For each engine, a query with equal rows for two databases of a server only if their schemas are equal."""
REVISION = f"SELECT xmin::text FROM {migrations.VERSION_TABLE}"
OTHERS = """SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid != pg_backend_pid() AND (state <> 'idle' OR NOT %s)"""
"""Ends other connections: all of them, or only those that are not idle."""


@cache
def empty_file() -> Path:
    """An SQLite database at the newest schema, to copy. Made once, because migrating takes longer than most tests."""
    directory = Path(tempfile.mkdtemp(prefix="ampmon-tests-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    settings = Settings(data_directory=directory)
    Store.open(settings).close()
    return settings.server_directory / "ampmon.db"


def defects(settings: Settings, only: UUID | None = None) -> list[str]:
    """Return what `ampmon db verify` finds in the whole database, or in the rows of one run."""
    with Verification.begin(settings) as verification:
        found = [] if only else [*verification.broken(), *verification.strays()]
        for run_id in [only] if only else verification.runs():
            found += verification.run(run_id)
    return [str(each) for each in found]


def provide(directory: Path) -> None:
    """Create an empty database at the newest schema in a data directory that has none."""
    server = Settings(data_directory=directory).server_directory
    if not (server / "ampmon.db").exists():
        server.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(empty_file(), server)


class Databases:
    """Lends empty copies of a database. A returned copy is emptied and lent again if its schema is unchanged."""

    def __init__(self, postgres: Postgres, template: str) -> None:
        self._postgres = postgres
        self._template = template
        self._definition = postgres.execute(DEFINITIONS["postgresql"], template)
        self._revision = postgres.execute(REVISION, template)
        tables = reversed(metadata.sorted_tables)  # delete a row before the row it refers to
        self._empty = "; ".join(f"DELETE FROM {table.name}" for table in tables)
        self._free: list[str] = []
        self._engines: dict[str, Engine] = {}

    def store(self, settings: Settings) -> Store:
        """A store in a lent database. Its connections are kept for later tests, because opening new ones takes long."""
        url = settings.database_url or ""
        if url not in self._engines:
            self._engines[url] = Store.open(settings)._engine
        return Store(Opened("", self._engines[url], None, None))

    def close(self) -> None:
        """Close all kept connections."""
        while self._engines:
            self._engines.popitem()[1].dispose()

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The URL of a database that nothing else uses."""
        url = self._free.pop() if self._free else self._postgres.new_database(self._template)
        yield url
        if self._emptied(url):
            self._free.append(url)
        else:
            if url in self._engines:
                self._engines.pop(url).dispose()
            self._postgres.drop(url)

    def _emptied(self, url: str) -> bool:
        with self._connection(url) as connection:
            connection.execute(OTHERS % (url in self._engines))
            if connection.execute(DEFINITIONS["postgresql"]).fetchall() != self._definition:
                return False
            if connection.execute(REVISION).fetchall() != self._revision:
                return False
            connection.execute(self._empty)
        return True

    @contextmanager
    def _connection(self, url: str) -> Iterator[Any]:
        if url not in self._engines:
            with self._postgres.connect(str(make_url(url).database)) as connection:
                yield connection
            return
        with closing(self._engines[url].raw_connection()) as pooled:
            yield pooled.dbapi_connection
            pooled.commit()


class Compiled(LRUCache):  # type: ignore[type-arg]
    """Compiled statements shared by several engines of one kind. SQLAlchemy's own caches belong to one engine each."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get(_of_any_engine(key), default)

    def __setitem__(self, key: tuple[Any, ...], value: Any) -> None:
        super().__setitem__(_of_any_engine(key), value)


def _of_any_engine(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect, *statement = key
    return (dialect.name, *statement)


@contextmanager
def shared_work() -> Iterator[None]:
    """Let all engines of this process share compiled statements, and check each schema only once."""
    compiled = Compiled(COMPILED_MAX)

    def share(connection: Connection) -> None:
        connection.execution_options(compiled_cache=compiled)

    event.listen(Engine, "engine_connect", share)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "differences", _remembered(migrations.differences))
        yield
    event.remove(Engine, "engine_connect", share)


def _remembered(
    differences: Callable[[Connection], list[str]],
) -> Callable[[Connection], list[str]]:
    known: dict[object, list[str]] = {}

    def compared(connection: Connection) -> list[str]:
        definition = connection.exec_driver_sql(DEFINITIONS[connection.dialect.name]).fetchall()
        key = (
            connection.engine.url.host,
            connection.engine.url.query.get("host"),
            tuple(definition),
        )
        if key not in known:
            known[key] = differences(connection)
        return known[key]

    return compared
