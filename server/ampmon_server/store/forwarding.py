"""What a store keeps of forwarding: since when each destination is, and how much it has of each run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, and_, insert, select

from ampmon_server.store import engine, postgresql, runs
from ampmon_server.store.calls import Calls
from ampmon_server.store.engine import insert_rows
from ampmon_server.store.portions import Portion, next_portion
from ampmon_server.tables import destinations, forwarded
from ampmon_server.tables import runs as of_runs


class Behind(NamedTuple):
    """A run of which a destination lacks something, and when it last changed, in us since the epoch."""

    run_id: UUID
    changed: int


class Forwarding(Calls):
    """Each call is one transaction."""

    @contextmanager
    def forwarding_alone(self, destination: str) -> Iterator[bool]:
        """Whether no other server process forwards there; none begins to before the block ends."""
        if self._engine.dialect.name == "sqlite":  # which has one server process
            yield True
            return
        with engine.writing(self._engine) as connection:
            yield postgresql.take_alone(connection, destination)

    def begin_forwarding(self, destination: str) -> None:
        """Forward from now on, unless that was begun before. Call it within `forwarding_alone`."""
        known = select(destinations).where(destinations.c.destination == destination)
        begun = {"destination": destination, "since": engine.now_us()}

        def work(connection: Connection) -> None:
            if connection.execute(known).first() is None:
                connection.execute(insert(destinations).values(begun))

        engine.write(self._engine, work)

    def behind(self, destination: str, since: int, limit: int) -> list[Behind]:
        """The first ``limit`` runs that changed at ``since`` or later, and are not wholly forwarded, in that order."""
        run, held = of_runs.c, forwarded.c
        begun = select(destinations.c.since).where(destinations.c.destination == destination)
        mine = and_(held.run_id == run.run_id, held.destination == destination)
        statement = (
            select(run.run_id, run.changed)
            .outerjoin(forwarded, mine)
            .where(run.deleted == 0, run.changed >= since, run.changed >= begun.scalar_subquery())
            .where(held.version.is_(None) | (held.version < run.version))
            .order_by(run.changed)
            .limit(limit)
        )
        with engine.reading(self._engine) as connection:
            rows = connection.execute(statement).all()
        return [Behind(UUID(bytes=run_id), changed) for run_id, changed in rows]

    def portion(self, destination: str, run_id: UUID) -> Portion:
        """What to forward of a run next. Raises NotFound."""
        held = forwarded.c
        cursor = select(held.ranges, held.position).where(
            held.run_id == run_id.bytes, held.destination == destination
        )
        with engine.reading(self._engine) as connection:
            run = runs.find(connection, run_id)
            done, position = connection.execute(cursor).one_or_none() or ("", "")
            return next_portion(connection, destination, run, done, position)

    def keep_forwarded(self, portion: Portion, position: str) -> None:
        """Note that a portion was forwarded, and what its destination is to remember. Raises NotFound."""
        row = (
            portion.run_id.bytes,
            portion.destination,
            portion.version,
            portion.ranges,
            position,
        )

        def work(connection: Connection) -> None:
            runs.find(connection, portion.run_id, held=True)
            insert_rows(connection, forwarded, [row], replace=True)

        engine.write(self._engine, work)
