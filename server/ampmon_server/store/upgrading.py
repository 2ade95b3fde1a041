"""Brings a database to this version, for `ampmon db upgrade`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ampmon_server import migrations
from ampmon_server.settings import Settings
from ampmon_server.store import engine, opening


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A database that has this version's schema. ``before`` is the schema that it had, None for an empty one."""

    database: str
    before: str | None
    after: str | None

    @classmethod
    @contextmanager
    def begin(cls, settings: Settings) -> Iterator[Upgrade]:
        """Upgrade the schema, in one transaction. Raises Unusable, with nothing changed.

        On SQLite nobody else may use the file until the end; on PostgreSQL servers should be stopped, and another
        upgrade that is at work is waited for.
        """
        opened = opening.open_database(settings, upgrading=True)
        try:
            with engine.reading(opened.engine) as connection:
                after = migrations.schema(connection).revision
            yield cls(opening.named(opened.engine.url), opened.before, after)
        finally:
            opened.close()
