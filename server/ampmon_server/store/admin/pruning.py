"""A database that is pruned by hand: beside the servers that use it, or alone, to write its file anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from ampmon_server.settings import Settings
from ampmon_server.store.admin import prune, space, verify
from ampmon_server.store.admin.checks.finding import Defect
from ampmon_server.store.admin.prune import Due, PruneSize
from ampmon_server.store.engine import engine, opening, postgresql
from ampmon_server.store.engine.calls import Calls, reads
from ampmon_server.store.engine.opening import Opened


class Prunes(Calls):
    """What prunes old runs, by hand or by itself."""

    due = reads(prune.due)
    left = reads(prune.left)

    def unsound(self, due: Due) -> Defect | None:
        """What is wrong with what is rolled up of a run: it is all that pruning would leave. Reads all of it."""
        return verify.unsound(self._engine, due.run_id)

    def prune(self, due: Due) -> Iterator[int]:
        """Prune a run, a short transaction with each step; how many rows it removed."""
        return prune.prune(self._engine, due)


class Pruning(Prunes):
    """A database that is pruned by hand. ``database`` says which it is, without any secret."""

    def __init__(self, opened: Opened) -> None:
        self._engine = opened.engine
        self.database = opened.name

    @classmethod
    @contextmanager
    def begin(cls, settings: Settings, *, alone: bool = False) -> Iterator[Pruning]:
        """Open the database. Raises Unusable; with ``alone`` also where a server uses an SQLite file."""
        with closing(opening.open_beside(settings, alone=alone)) as opened:
            yield cls(opened)

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def size(self, due: Due) -> PruneSize:
        """How much pruning a run removes. Counts all of it."""
        with engine.reading(self._engine) as connection:
            postgresql.take_time(connection)
            return prune.size(connection, due)

    def used(self) -> int:
        """Bytes that the database takes."""
        return space.used(self._engine)

    def give_back(self) -> Iterator[int]:
        """Give free space back as far as it can be beside those who use it; bytes with each step."""
        return space.give_back(self._engine)

    @property
    def cuts(self) -> bool:
        """Whether free space goes back to the disk, and does not only wait for what comes."""
        return space.cuts(self._engine)

    def rewrite(self) -> str | None:
        """Write an SQLite file anew, as small as it can be; why it cannot be, or None."""
        return space.rewrite(self._engine)
