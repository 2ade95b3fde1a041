"""How the database itself is, whatever is in it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

from ampmon_server import migrations
from ampmon_server.store import engine
from ampmon_server.store.errors import Unusable


class Standing:
    """What a watcher asks of a store."""

    _engine: Engine

    def check(self) -> None:
        """Raise Busy unless the database answers, and Unusable where its schema is not this version's any more."""
        with engine.reading(self._engine) as connection:
            found = migrations.schema(connection)
        if found.age != "current":
            raise Unusable(
                f"The schema of the database is {found.revision} now: start this server anew."
            )

    def file_bytes(self) -> int | None:
        """The size of an SQLite file; None of another database, and where the file is gone. Asks no question."""
        if self._engine.dialect.name != "sqlite":
            return None
        try:
            return Path(self._engine.url.database or "").stat().st_size
        except OSError:
            return None
