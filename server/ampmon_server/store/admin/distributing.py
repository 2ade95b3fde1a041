"""Distributes the tables of a PostgreSQL database over a Citus cluster by run, for `ampmon db distribute`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from ampmon_server.settings import Settings
from ampmon_server.store.engine import engine, opening, postgresql
from ampmon_server.store.engine.errors import Unusable
from ampmon_server.store.engine.opening import Opened, url_of
from ampmon_server.store.schema.migrations import VERSION_TABLE
from ampmon_server.store.schema.tables import metadata, runs


RUN = runs.c.run_id.name
BY_RUN = tuple(table.name for table in metadata.sorted_tables if RUN in table.c)
"""Tables whose rows lie on the node of their run. `runs` comes before the tables that refer to it."""
EVERYWHERE = (
    *(table.name for table in metadata.sorted_tables if RUN not in table.c),
    VERSION_TABLE,
)
"""Small tables that belong to no run. Every node has a copy."""

_Placing: TypeAlias = tuple[str, str | None, int | None]
"""How a table is placed: the method ('h' for a hash of a column, 'n' for none), the column, and the colocation id."""

_PLACED = text(
    "SELECT c.relname, p.partmethod::text, column_to_column_name(p.logicalrelid, p.partkey)::text, p.colocationid "
    "FROM pg_dist_partition p JOIN pg_class c ON c.oid = p.logicalrelid WHERE pg_table_is_visible(c.oid)"
)
_NODES = text(
    "SELECT nodename::text, nodeport, shouldhaveshards FROM pg_dist_node WHERE isactive AND noderole::text = 'primary'"
)
_EMPTYING = "SELECT truncate_local_data_after_distributing_table('{}')"
_NOT_NEEDED = "Citus is optional: ampmon also works on a single PostgreSQL server"


@dataclass(frozen=True, slots=True)
class DistributionStep:
    table: str
    statement: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """A PostgreSQL database with Citus, and the ``steps`` that remain. ``nodes`` are the nodes that will hold runs."""

    database: str
    nodes: tuple[str, ...]
    steps: tuple[DistributionStep, ...]
    _opened: Opened

    @classmethod
    @contextmanager
    def begin(cls, settings: Settings) -> Iterator[Distribution]:
        """Open and inspect the database without changing it.

        Raises Unusable if it cannot be distributed, and Busy.
        """
        url = url_of(settings)
        if engine.open_engine(url).dialect.name == "sqlite":
            raise Unusable(
                f"{url.database} is an SQLite file, on one machine: to distribute "
                f"runs, keep them in PostgreSQL with Citus, --database-url {postgresql.DRIVER}://..."
            )
        with closing(opening.open_to_read(settings)) as opened:
            with engine.reading(opened.engine) as connection:
                _check_extension(connection, opened.name)
                nodes = _nodes(connection, opened.name)
                if not connection.scalar(text("SELECT citus_is_coordinator()")):
                    raise Unusable(
                        f"{opened.name} is a worker of its cluster: name the coordinator in --database-url"
                    )
                steps = _steps(connection)
            yield cls(opened.name, nodes, steps, opened)

    @property
    def tables(self) -> int:
        """The number of all tables to distribute, including those already distributed."""
        return len(BY_RUN) + len(EVERYWHERE)

    def run(self) -> Iterator[DistributionStep]:
        """Run the remaining steps in one transaction and yield each step once it is done. Commit after the last.

        Raises Unusable or Busy, with nothing changed.
        """
        with engine.writing(self._opened.engine) as connection:
            postgresql.lock_schema(connection)
            # Another process may have distributed the tables since `begin`.
            for step in _steps(connection):
                try:
                    connection.exec_driver_sql(step.statement)
                except DBAPIError as error:
                    raise Unusable(_failure(step, error, self.database)) from error
                yield step


def _check_extension(connection: Connection, name: str) -> None:
    if connection.scalar(text("SELECT 1 FROM pg_extension WHERE extname = 'citus'")) is None:
        found = text("SELECT 1 FROM pg_available_extensions WHERE name = 'citus'")
        if connection.scalar(found) is not None:
            raise Unusable(
                f"Citus is installed, but not enabled in {name}: on each node set shared_preload_libraries = 'citus', "
                f"restart PostgreSQL, and run CREATE EXTENSION citus in the database. {_NOT_NEEDED}"
            )
        raise Unusable(
            f"{name} has no Citus: install it on each node (https://docs.citusdata.com), set "
            "shared_preload_libraries = 'citus', restart PostgreSQL, and run CREATE EXTENSION citus in the "
            f"database. {_NOT_NEEDED}"
        )


def _nodes(connection: Connection, name: str) -> tuple[str, ...]:
    """The nodes that will hold runs. Raises Unusable if there are none."""
    nodes = connection.execute(_NODES).all()
    holding = tuple(f"{node.nodename}:{node.nodeport}" for node in nodes if node.shouldhaveshards)
    if not holding:
        raise Unusable(
            f"{name} has no worker node: in that database, run SELECT citus_set_coordinator_host('HOST', PORT) with "
            "its own address, and SELECT citus_add_node('HOST', PORT) for each worker"
        )
    return holding


def _steps(connection: Connection) -> tuple[DistributionStep, ...]:
    """The remaining steps: place each table, then delete its rows on the coordinator.

    Raises Unusable if a table is distributed in another way.
    """
    placed: dict[str, _Placing] = {
        row[0]: (row[1], row[2], row[3]) for row in connection.execute(_PLACED).all()
    }
    for table in (*BY_RUN, *EVERYWHERE):
        if table in placed and not _as_wanted(table, placed):
            raise Unusable(
                f"{table} is distributed in another way: run SELECT undistribute_table('{table}', "
                "cascade_via_foreign_keys => true), then run this command again"
            )
    left = [table for table in (*EVERYWHERE, *BY_RUN) if table not in placed]
    # A table can be emptied only after the tables that refer to it are placed.
    return (
        *(DistributionStep(table, _placing(table)) for table in left),
        *(DistributionStep(table, _EMPTYING.format(table)) for table in reversed(left)),
    )


def _as_wanted(table: str, placed: dict[str, _Placing]) -> bool:
    how, column, group = placed[table]
    if table in EVERYWHERE:
        return how == "n" and column is None
    return (how, column) == ("h", RUN) and group == placed.get(runs.name, (None, None, None))[2]


def _placing(table: str) -> str:
    if table in EVERYWHERE:
        return f"SELECT create_reference_table('{table}')"
    # By default Citus would colocate it with a table of another program that has the same column type.
    beside = "none" if table == runs.name else runs.name
    return f"SELECT create_distributed_table('{table}', '{RUN}', colocate_with => '{beside}')"


def _failure(step: DistributionStep, error: DBAPIError, name: str) -> str:
    reason = " ".join(str(error.orig).split())
    state = getattr(error.orig, "sqlstate", None)
    if state == "55P03":
        reason, remedy = f"{step.table} is in use", "stop every ampmon serve that uses it"
    elif state == "42501":
        remedy = "run it as the owner of the tables, with the right to connect to every node"
    else:
        remedy = "check that the coordinator reaches every worker: SELECT * FROM citus_check_cluster_node_health()"
    return f"{name}: nothing is distributed ({step.statement}: {reason}): {remedy}"
