"""`ampmon db distribute`: the SQL it runs on a Citus cluster, and its errors without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from ampmon_server.store.schema.tables import metadata
from postgres import Postgres
from typed import typed


Distribute = Callable[..., tuple[int, list[str], str]]

SCHEMA = "citus_stand_in"
SETUP = Path(__file__).with_name("citus.sql").read_text()
READY = f"""
INSERT INTO {SCHEMA}.pg_extension VALUES ('citus');
INSERT INTO {SCHEMA}.pg_dist_node VALUES ('one', 5432, true, 'primary', false), ('two', 5432, true, 'primary', true),
    ('three', 5433, true, 'primary', true), ('four', 5432, true, 'secondary', true);
"""

OF_NO_RUN = ("destinations", "messages", "mutes", "revoked_sessions", "tokens")
BY_RUN = sorted(name for name in metadata.tables if name not in {*OF_NO_RUN, "runs"})
SPREAD = [
    *(f"SELECT create_reference_table('{name}');" for name in (*OF_NO_RUN, "alembic_version")),
    "SELECT create_distributed_table('runs', 'run_id', colocate_with => 'none');",
    *(
        f"SELECT create_distributed_table('{name}', 'run_id', colocate_with => 'runs');"
        for name in BY_RUN
    ),
]


class Cluster:
    """A real PostgreSQL with a stand-in for Citus: tables and functions in a schema of its own.

    The stand-in applies the rules by which Citus refuses a table, and records calls in order. A search_path with its
    schema before pg_catalog makes connections find it under the names of system catalogues.
    """

    def __init__(self, server: Postgres, url: str) -> None:
        self._server = server
        self.database = str(make_url(url).database)
        path = f"-c search_path={SCHEMA},public,pg_catalog -c lock_timeout=200"
        self.url = make_url(url).update_query_dict({"options": path}).render_as_string()
        self.run(SETUP)

    def run(self, statements: str) -> None:
        with self._server.connect(self.database) as connection:
            connection.execute(f"SET search_path = {SCHEMA}, public, pg_catalog")
            connection.execute(statements)  # type: ignore[call-overload]

    def asked(self) -> list[str]:
        """The recorded calls in order, without those rolled back."""
        query = f"SELECT what FROM {SCHEMA}.asked ORDER BY place"
        return [what for (what,) in self._server.execute(query, self.database)]


@pytest.fixture
def distribute(tmp_path: Path) -> Distribute:
    """Run the command. Return its exit code, printed lines and stderr."""

    def run(url: str | None, *flags: str) -> tuple[int, list[str], str]:
        where = ["--data-dir", str(tmp_path)]
        where += [] if url is None else ["--database-url", url]
        code, out, err = typed("db", "distribute", *where, *flags)
        return code, out.splitlines(), err

    return run


@pytest.fixture
def cluster(postgres: Postgres, migrated: str) -> Iterator[Cluster]:
    """An empty store with the Citus stand-in, without extension and nodes yet."""
    url = postgres.new_database(migrated)
    yield Cluster(postgres, url)
    postgres.drop(url)


def test_the_sql_is_shown_before_it_is_run(cluster: Cluster, distribute: Distribute) -> None:
    """--dry-run prints one transaction that distributes every table, then empties its local copy, and runs nothing."""
    cluster.run(READY)
    code, lines, said = distribute(cluster.url, "--dry-run")

    assert (code, lines[0], lines[-1]) == (0, "BEGIN;", "COMMIT;")
    placing, emptying = lines[1 : len(SPREAD) + 1], lines[len(SPREAD) + 1 : -1]
    assert placing == SPREAD
    assert len(emptying) == len(SPREAD) == len(metadata.tables) + 1
    assert all("truncate_local_data_after_distributing_table" in each for each in emptying)
    assert f"{len(SPREAD)} tables are to be distributed" in said
    assert cluster.asked() == []


def test_every_table_is_distributed_once(cluster: Cluster, distribute: Distribute) -> None:
    """All tables are distributed and emptied in an order the cluster accepts. A second run does nothing."""
    cluster.run(READY)
    code, (line,), _ = distribute(cluster.url)
    asked = cluster.asked()
    assert (code, len(asked)) == (0, 2 * len(SPREAD))
    assert asked[: len(OF_NO_RUN) + 2] == [
        *(f"copy {name}" for name in (*OF_NO_RUN, "alembic_version")),
        "spread runs by run_id beside none",
    ]
    assert {f"spread {name} by run_id beside runs" for name in BY_RUN} < set(asked)
    assert (
        f"{len(SPREAD)} tables are distributed by run over two:5432, three:5433; 0 of them were distributed already"
        in line
    )

    code, (line,), _ = distribute(cluster.url)
    assert code == 0
    assert "all of them were distributed already" in line
    assert cluster.asked() == asked


def test_only_what_is_left_is_done(cluster: Cluster, distribute: Distribute) -> None:
    """Only tables that are not distributed yet are distributed."""
    cluster.run(READY)
    distribute(cluster.url)
    cluster.run(
        f"DELETE FROM pg_dist_partition WHERE logicalrelid = 'skips'::regclass; DELETE FROM {SCHEMA}.asked"
    )
    code, (line,), _ = distribute(cluster.url)

    assert cluster.asked() == ["spread skips by run_id beside runs", "empty skips"]
    assert code == 0
    assert f"{len(SPREAD) - 1} of them were distributed already" in line


def test_what_fails_leaves_nothing_done(cluster: Cluster, distribute: Distribute) -> None:
    """If the cluster rejects one table, none is distributed, and the error quotes it and says what to check."""
    cluster.run(READY + "ALTER TABLE moves DROP CONSTRAINT pk_moves")
    code, lines, said = distribute(cluster.url)

    assert (code, lines, cluster.asked()) == (2, [], [])
    assert "nothing is distributed" in said
    assert "cannot create constraint on moves" in said
    assert "citus_check_cluster_node_health" in said


def test_a_table_in_use_is_not_waited_for(
    postgres: Postgres, cluster: Cluster, distribute: Distribute
) -> None:
    """If a table is in use, the error says to stop the servers, and nothing is distributed."""
    cluster.run(READY)
    with postgres.connect(cluster.database) as busy, busy.transaction():
        busy.execute("LOCK TABLE moves IN ROW EXCLUSIVE MODE")
        code, _, said = distribute(cluster.url)

    assert (code, cluster.asked()) == (2, [])
    assert "moves is in use): stop every ampmon serve that uses it" in said


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("", "has no Citus: install it on each node"),
        (
            "INSERT INTO pg_available_extensions VALUES ('citus')",
            ": on each node set shared_preload_libraries = 'citus', restart PostgreSQL, and run "
            "CREATE EXTENSION citus",
        ),
        (READY + "DELETE FROM pg_dist_node", "SELECT citus_add_node('HOST', PORT) for each worker"),
        (READY + "UPDATE coordinator SET here = false", "name the coordinator in --database-url"),
        (
            READY + "INSERT INTO pg_dist_partition VALUES ('moves', 'h', 'step', 7)",
            "moves is distributed in another way: run SELECT undistribute_table('moves'",
        ),
        (
            READY + "UPDATE public.alembic_version SET version_num = '0003'",
            "does not have this version's schema (found: 0003): run ampmon db upgrade",
        ),
    ],
)
def test_what_is_missing_is_said(
    cluster: Cluster, distribute: Distribute, state: str, says: str
) -> None:
    """One line says what is missing and what to do, with exit code 2, also with --dry-run."""
    cluster.run(state or "SELECT 1")
    for flags in ([], ["--dry-run"]):
        code, lines, said = distribute(cluster.url, *flags)
        assert (code, lines, said.count("\n")) == (2, [], 1)
        assert says in said
    assert cluster.asked() == []


def test_postgresql_without_citus_is_left_as_it_is(
    postgres: Postgres, migrated: str, distribute: Distribute
) -> None:
    """On PostgreSQL without Citus, the error says so, and that ampmon works without it."""
    url = postgres.new_database(migrated)
    code, lines, said = distribute(url)
    postgres.drop(url)

    assert (code, lines) == (2, [])
    assert "has no Citus: install it on each node" in said
    assert "Citus is optional: ampmon also works on a single PostgreSQL server" in said


def test_sqlite_is_on_one_machine(tmp_path: Path, distribute: Distribute) -> None:
    """For SQLite the command fails, and creates no file."""
    code, lines, said = distribute(None)

    assert (code, lines) == (2, [])
    assert "is an SQLite file, on one machine" in said
    assert not list(tmp_path.glob("server/*"))
