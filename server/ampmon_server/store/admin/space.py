"""Gives the space of rows that were removed back to the disk, as far as each engine can beside those who use it."""

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
"""Pages of an SQLite file, 8 MB, that are moved to its end and cut off in one transaction."""

INCREMENTAL = 2


def used(database: Engine) -> int:
    """Bytes of the database: of an SQLite file, of all our tables in PostgreSQL."""
    with engine.reading(database) as connection:
        if connection.dialect.name == "sqlite":
            return _pragma(connection, "page_count") * _pragma(connection, "page_size")
        return sum(
            int(connection.exec_driver_sql(f"SELECT pg_total_relation_size('{name}')").scalar_one())
            for name in metadata.tables
        )


def give_back(database: Engine) -> Iterator[int]:
    """Give free space back, a short transaction at a time; how many bytes each has. Raises Busy.

    In PostgreSQL the tables keep it for what comes, as autovacuum would have it: only VACUUM FULL, which nobody may
    write beside, gives it to the disk.
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
    """Move some free pages to the file's end and cut them off; how many."""
    with engine.reading(database) as connection:
        before = _pragma(connection, "freelist_count")
    _run(database, f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
    with engine.reading(database) as connection:
        return before - _pragma(connection, "freelist_count")


def _run(database: Engine, *statements: str) -> None:
    """Run statements to their end, each a transaction of its own. Raises Busy."""
    raw = database.raw_connection()
    try:
        for statement in statements:
            # A script is run to its end; of a statement that gives rows the driver would take the first only.
            raw.driver_connection.executescript(statement)  # type: ignore[union-attr]
    except sqlite3.DatabaseError as error:
        raise Busy(f"The database cannot be used now: {error}") from error
    finally:
        raw.invalidate()  # with whatever was set


def _vacuum_tables(database: Engine) -> Iterator[int]:
    with database.connect() as opened:
        connection = opened.execution_options(isolation_level="AUTOCOMMIT")
        connection.exec_driver_sql("SET statement_timeout = 0")
        for name in metadata.tables:
            connection.exec_driver_sql(f"VACUUM (ANALYZE) {name}")
            yield 0
        connection.exec_driver_sql("RESET statement_timeout")


def rewrite(database: Engine) -> str | None:
    """Write an SQLite file anew without what is free in it, while nobody uses it; why it cannot be, or None.

    It can be cut at its end from then on. Needs as much space again as the file has.
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
    """Whether `give_back` gives to the disk: an SQLite file of an older version is to be rewritten first."""
    if database.dialect.name != "sqlite":
        return False
    with engine.reading(database) as connection:
        return _pragma(connection, "auto_vacuum") == INCREMENTAL


def _pragma(connection: Connection, name: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
