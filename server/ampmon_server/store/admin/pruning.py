"""Opens a database for `ampmon db prune`: beside running servers, or exclusively to rewrite its file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from ampmon_server.settings import Settings
from ampmon_server.store.admin import prune, space, verify
from ampmon_server.store.admin.defect import Defect
from ampmon_server.store.admin.prune import PruneSize, PruneTask
from ampmon_server.store.engine import engine, opening, postgresql
from ampmon_server.store.engine.calls import Calls, reads
from ampmon_server.store.engine.opening import Opened


class PruneCalls(Calls):
    """Calls that prune old runs, for the server's hourly pruning and for `ampmon db prune`."""

    due = reads(prune.due)
    left = reads(prune.left)

    def unsound(self, due: PruneTask) -> Defect | None:
        """Return the first defect in the aggregates of a run, or None. Reads the whole run.

        Check this before pruning, which leaves only the aggregates.
        """
        return verify.unsound(self._engine, due.run_id)

    def prune(self, due: PruneTask) -> Iterator[int]:
        """Prune a run, one short transaction per step, and yield how many rows each removes."""
        return prune.prune(self._engine, due)


class Pruning(PruneCalls):
    """A database opened by `ampmon db prune`. ``database`` names it without any secret."""

    def __init__(self, opened: Opened) -> None:
        self._engine = opened.engine
        self.database = opened.name

    @classmethod
    @contextmanager
    def begin(cls, settings: Settings, *, alone: bool = False) -> Iterator[Pruning]:
        """Open the database. Raises Unusable; with ``alone`` also if a server uses the SQLite file."""
        with closing(opening.open_beside(settings, alone=alone)) as opened:
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
        """The size of the database in bytes."""
        return space.used(self._engine)

    def give_back(self) -> Iterator[int]:
        """Return free space to the disk, as far as possible while servers run, and yield the bytes of each step."""
        return space.give_back(self._engine)

    @property
    def cuts(self) -> bool:
        """Whether `give_back` returns free space to the disk, instead of only keeping it for new rows."""
        return space.cuts(self._engine)

    def rewrite(self) -> str | None:
        """Rewrite an SQLite file without its free space. Return why that is not possible, or None if it is done."""
        return space.rewrite(self._engine)
