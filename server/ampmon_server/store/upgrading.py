"""Brings a database to this version: its schema, and then what is rolled up of each run that an older one stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, Engine, select, update
from zstandard import ZstdError

from ampmon_server import migrations
from ampmon_server.settings import Settings
from ampmon_server.store import engine, opening, postgresql, rollups, scalars
from ampmon_server.store.checks import blocks, records
from ampmon_server.store.errors import Busy, Unusable
from ampmon_server.store.opening import Opened
from ampmon_server.tables import runs


Rebuild = Callable[[Connection, bytes], None]

REBUILDS: tuple[Rebuild, ...] = (rollups.rebuild, scalars.rebuild, blocks.mend)
"""Each makes one kind of what follows from the rows of a run anew."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A database with this version's schema. ``before`` is the one that it had, None for an empty database."""

    database: str
    before: str | None
    after: str | None
    _engine: Engine

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
            yield cls(opened.name, opened.before, after, opened.engine)
        finally:
            opened.close()

    def waiting(self) -> list[bytes]:
        """The runs that are not rolled up, the newest first."""
        return waiting(self._engine)

    def roll_up(self, run_id: bytes) -> bool:
        """Roll up one run, in a transaction of its own; False where its rows cannot be read. Raises Busy."""
        return roll_up(self._engine, run_id)


def catch_up(opened: Opened) -> None:
    """Roll up every run that is not, as a server does that starts. Raises Unusable, with the database closed."""
    try:
        for run_id in waiting(opened.engine):
            if not roll_up(opened.engine, run_id):
                _log.warning("Run %s cannot be rolled up: see ampmon db verify", UUID(bytes=run_id))
    except Busy as error:
        opened.close()
        raise Unusable(f"{opened.name}: {error}") from error


def waiting(database: Engine) -> list[bytes]:
    """The runs that are not rolled up, the newest first."""
    statement = select(runs.c.run_id).where(runs.c.rolled_up == 0, runs.c.deleted == 0)
    with engine.reading(database) as connection:
        return list(connection.scalars(statement.order_by(runs.c.started.desc(), runs.c.run_id)))


def roll_up(database: Engine, run_id: bytes) -> bool:
    """Roll up one run, in a transaction of its own; False where its rows cannot be read. Raises Busy."""
    try:
        engine.write(database, lambda connection: _roll_up(connection, run_id))
    except (ValueError, ZstdError):
        return False
    return True


def _roll_up(connection: Connection, run_id: bytes) -> None:
    if connection.dialect.name == "postgresql":
        postgresql.take_time(connection)
    of_run = runs.c.run_id == run_id
    # Another process that starts at the same time may have it in its hands.
    held = select(runs.c.rolled_up).where(of_run).with_for_update(skip_locked=True)
    if connection.scalar(held) != 0:
        return
    for rebuild in REBUILDS:
        rebuild(connection, run_id)
    records.mend(connection, connection.execute(select(runs).where(of_run)).one())
    connection.execute(update(runs).where(of_run).values(rolled_up=1))
