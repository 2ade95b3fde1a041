"""Opens a database for `ampmon db prune`, and returns the space of deleted rows to the disk as each engine can."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ampmon_server.settings import Settings
from ampmon_server.store.admin import prune
from ampmon_server.store.admin.prune import PruneCalls, PruneSize, PruneTask
from ampmon_server.store.engine import engine, opening, postgresql
from ampmon_server.store.engine.errors import Busy
from ampmon_server.store.engine.opening import Opened
from ampmon_server.store.schema.tables import metadata


PAGES_AT_ONCE = 2000
"""Free pages of an SQLite file (8 MB) that one transaction moves to its end and cuts off."""

_INCREMENTAL = 2


class Pruning(PruneCalls):
    """A database opened by `ampmon db prune`. ``database`` names it without any secret."""

    def __init__(self, opened: Opened) -> None:
        self._engine = opened.engine
        self.database = opened.name

    @classmethod
    @contextmanager
    def begin(cls, settings: Settings, *, alone: bool = False) -> Iterator[Pruning]:
        """Open the database. Raises Unusable; with ``alone`` also if a server uses the SQLite file."""
        with closing(opening.open_to_read(settings, alone=alone)) as opened:
            yield cls(opened)

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    @property
    def cuts(self) -> bool:
        """Whether `give_back` returns free space to the disk, instead of only keeping it for new rows.

        An SQLite file of an older version needs a `rewrite` first.
        """
        return self.is_sqlite and self._pragma("auto_vacuum") == _INCREMENTAL

    def size(self, due: PruneTask) -> PruneSize:
        """Count what pruning a run removes. Counts every row."""
        with engine.reading(self._engine) as connection:
            postgresql.lift_timeouts(connection)
            return prune.size(connection, due)

    def used(self) -> int:
        """Return the size in bytes of an SQLite file, or of all ampmon tables in PostgreSQL."""
        if self.is_sqlite:
            return self._pragma("page_count") * self._pragma("page_size")
        return sum(
            self._number(f"SELECT pg_total_relation_size('{name}')") for name in metadata.tables
        )

    def give_back(self) -> Iterator[int]:
        """Return free space to the disk in short transactions, and yield the bytes of each. Raises Busy.

        In PostgreSQL this vacuums each table, which keeps the space for new rows, as autovacuum does. Only VACUUM FULL
        returns it to the disk, and blocks all writes meanwhile.
        """
        if not self.is_sqlite:
            yield from self._vacuum_tables()
        elif self.cuts:
            size = self._pragma("page_size")
            while freed := self._cut():
                yield freed * size
            self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    def rewrite(self) -> str | None:
        """Rewrite an SQLite file without its free space. Return why that is not possible, or None if it is done.

        No other process may use the file. Needs 1.1 times the size of the file as free space on its disk. Afterwards
        `give_back` can return free space to the disk.
        """
        file = Path(self._engine.url.database or "")
        needed, free = file.stat().st_size, shutil.disk_usage(file.parent).free
        if free < 1.1 * needed:
            disk = f"the disk of {file}, which has {free / 1e6:,.0f} MB"
            return f"it needs {needed / 1e6:,.0f} MB on {disk}"
        self._run(
            # VACUUM builds the new file in a temporary one, which need not fit into memory.
            "PRAGMA temp_store = FILE",
            "PRAGMA auto_vacuum = INCREMENTAL",
            "VACUUM",
            "PRAGMA wal_checkpoint(TRUNCATE)",
        )
        return None

    def _cut(self) -> int:
        """Cut some free pages off the end of the file and return how many."""
        before = self._pragma("freelist_count")
        self._run(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
        return before - self._pragma("freelist_count")

    def _vacuum_tables(self) -> Iterator[int]:
        with self._engine.connect() as opened:
            connection = opened.execution_options(isolation_level="AUTOCOMMIT")
            connection.exec_driver_sql("SET statement_timeout = 0")
            for name in metadata.tables:
                connection.exec_driver_sql(f"VACUUM (ANALYZE) {name}")
                yield 0
            connection.exec_driver_sql("RESET statement_timeout")

    def _run(self, *statements: str) -> None:
        """Run each statement on SQLite to its end in its own transaction. Raises Busy."""
        raw = self._engine.raw_connection()
        try:
            for statement in statements:
                # `execute` would stop a statement that returns rows at its first row; a script runs to its end.
                raw.driver_connection.executescript(statement)  # type: ignore[union-attr]
        except sqlite3.DatabaseError as error:
            raise Busy(f"The database cannot be used now: {error}") from error
        finally:
            raw.invalidate()  # discards the settings that the pragmas changed

    def _pragma(self, name: str) -> int:
        return self._number(f"PRAGMA {name}")

    def _number(self, statement: str) -> int:
        with engine.reading(self._engine) as connection:
            return int(connection.exec_driver_sql(statement).scalar_one())
