"""Opens a database for `ampmon db prune`, and returns the space of deleted rows in an SQLite file to the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from ampmon_server.settings import Settings
from ampmon_server.store.admin import prune
from ampmon_server.store.admin.prune import PruneCalls, PruneSize, PruneTask
from ampmon_server.store.engine import engine, opening, postgresql
from ampmon_server.store.engine.errors import Busy
from ampmon_server.store.engine.opening import Opened
from ampmon_server.store.schema.tables import metadata


PAGES_AT_ONCE = 2000
"""Free pages of an SQLite file (8 MB) that one transaction moves to its end and cuts off."""


class Pruning(PruneCalls):
    """A database opened by `ampmon db prune`. ``database`` names it without any secret."""

    def __init__(self, opened: Opened) -> None:
        self._engine = opened.engine
        self.database = opened.name

    @classmethod
    @contextmanager
    def begin(cls, settings: Settings) -> Iterator[Pruning]:
        """Open the database. Raises Unusable."""
        with closing(opening.open_to_read(settings)) as opened:
            yield cls(opened)

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

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

        PostgreSQL keeps it for new rows instead, once it has vacuumed the tables. Only VACUUM FULL returns it to the
        disk, and blocks all writes meanwhile.
        """
        if self.is_sqlite:
            size = self._pragma("page_size")
            while freed := self._cut():
                yield freed * size
            self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    def _cut(self) -> int:
        """Cut some free pages off the end of the file and return how many."""
        before = self._pragma("freelist_count")
        self._run(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
        return before - self._pragma("freelist_count")

    def _run(self, statement: str) -> None:
        """Run a statement on SQLite to its end in its own transaction. Raises Busy."""
        raw = self._engine.raw_connection()
        try:
            # `execute` would stop a statement that returns rows at its first row; a script runs to its end.
            raw.driver_connection.executescript(statement)  # type: ignore[union-attr]
        except sqlite3.DatabaseError as error:
            raise Busy(f"The database cannot be used now: {error}") from error
        finally:
            raw.close()

    def _pragma(self, name: str) -> int:
        return self._number(f"PRAGMA {name}")

    def _number(self, statement: str) -> int:
        with engine.reading(self._engine) as connection:
            return int(connection.exec_driver_sql(statement).scalar_one())
