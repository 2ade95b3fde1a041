"""Brings a database to this version's schema, for `ampmon db upgrade`."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from ampmon_server import migrations
from ampmon_server.settings import Settings
from ampmon_server.store import engine, opening


class Upgrade(NamedTuple):
    """What was done to a database. ``before`` is the schema that it had, None for an empty database."""

    database: str
    before: str | None
    after: str | None


def upgrade(settings: Settings) -> Upgrade:
    """Upgrade the schema, in one transaction. Raises Unusable or Busy, with nothing changed.

    On SQLite nobody else may use the file until the end; on PostgreSQL servers should be stopped, and another upgrade
    that is at work is waited for.
    """
    with (
        closing(opening.open_database(settings, upgrading=True)) as opened,
        engine.reading(opened.engine) as connection,
    ):
        return Upgrade(opened.name, opened.before, migrations.schema(connection).revision)
