"""Returns the space of deleted rows to the disk, as far as each engine can while servers run."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, Engine

from ampmon_server.store.engine import engine
from ampmon_server.store.engine.errors import Busy
from ampmon_server.store.schema.tables import metadata


PAGES_AT_ONCE = 2000
"""Free pages of an SQLite file (8 MB) that one transaction moves to its end and cuts off."""

INCREMENTAL = 2


def used(database: Engine) -> int:
    """Return the size in bytes of an SQLite file, or of all ampmon tables in PostgreSQL."""
    with engine.reading(database) as connection:
        if connection.dialect.name == "sqlite":
            return _pragma(connection, "page_count") * _pragma(connection, "page_size")
        return sum(
            int(connection.exec_driver_sql(f"SELECT pg_total_relation_size('{name}')").scalar_one())
            for name in metadata.tables
        )


def give_back(database: Engine) -> Iterator[int]:
    """Return free space to the disk in short transactions, and yield the bytes of each. Raises Busy.

    In PostgreSQL this vacuums each table, which keeps the space for new rows, as autovacuum does. Only VACUUM FULL
    returns it to the disk, and blocks all writes meanwhile.
    """
    if database.dialect.name == "sqlite":
        yield from _shrink(database)
    else:
        yield from _vacuum_tables(database)


def _shrink(database: Engine) -> Iterator[int]:
    with engine.reading(database) as connection:
        if _pragma(connection, "auto_vacuum") != INCREMENTAL:
            return
        size = _pragma(connection, "page_size")
    while freed := _cut(database):
        yield freed * size
    _run(database, "PRAGMA wal_checkpoint(TRUNCATE)")


def _cut(database: Engine) -> int:
    """Cut some free pages off the end of the file and return how many."""
    with engine.reading(database) as connection:
        before = _pragma(connection, "freelist_count")
    _run(database, f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
    with engine.reading(database) as connection:
        return before - _pragma(connection, "freelist_count")


def _run(database: Engine, *statements: str) -> None:
    """Run each statement to its end in its own transaction. Raises Busy."""
    raw = database.raw_connection()
    try:
        for statement in statements:
            # `execute` would stop a statement that returns rows at its first row; a script runs to its end.
            raw.driver_connection.executescript(statement)  # type: ignore[union-attr]
    except sqlite3.DatabaseError as error:
        raise Busy(f"The database cannot be used now: {error}") from error
    finally:
        raw.invalidate()  # discards the settings that the pragmas changed


def _vacuum_tables(database: Engine) -> Iterator[int]:
    with database.connect() as opened:
        connection = opened.execution_options(isolation_level="AUTOCOMMIT")
        connection.exec_driver_sql("SET statement_timeout = 0")
        for name in metadata.tables:
            connection.exec_driver_sql(f"VACUUM (ANALYZE) {name}")
            yield 0
        connection.exec_driver_sql("RESET statement_timeout")


def rewrite(database: Engine) -> str | None:
    """Rewrite an SQLite file without its free space. Return why that is not possible, or None if it is done.

    No other process may use the file. Needs 1.1 times the size of the file as free space on its disk. Afterwards
    `give_back` can return free space to the disk.
    """
    file = Path(database.url.database or "")
    needed, free = file.stat().st_size, shutil.disk_usage(file.parent).free
    if free < 1.1 * needed:
        return (
            f"it needs {needed / 1e6:,.0f} MB on the disk of {file}, which has {free / 1e6:,.0f} MB"
        )
    _run(
        database,
        "PRAGMA temp_store = FILE",
        "PRAGMA auto_vacuum = INCREMENTAL",
        "VACUUM",
        "PRAGMA wal_checkpoint(TRUNCATE)",
    )
    return None


def cuts(database: Engine) -> bool:
    """Whether `give_back` returns space to the disk. An SQLite file of an older version needs a `rewrite` first."""
    if database.dialect.name != "sqlite":
        return False
    with engine.reading(database) as connection:
        return _pragma(connection, "auto_vacuum") == INCREMENTAL


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
