"""What a server does with a database at start: set it up, upgrade it, or refuse it and say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, make_url, text
from starlette.testclient import TestClient

from ampmon.system import mounts
from ampmon_server.settings import Settings
from ampmon_server.store import Store, Unusable
from ampmon_server.store.engine import engine, postgresql
from ampmon_server.store.engine.opening import url_of
from ampmon_server.store.schema import migrations, tables
from batches import Trainer
from postgres import Postgres
from waiting import wait_for


pytestmark = pytest.mark.engines


@pytest.fixture
def changed(settings: Settings) -> Iterator[object]:
    """A function that runs statements on a store's database, which no server has open."""
    Store.open(settings).close()
    opened = engine.open_engine(url_of(settings))

    def change(*statements: str) -> None:
        with engine.writing(opened) as connection:
            for statement in statements:
                connection.execute(text(statement))

    yield change
    opened.dispose()


def refusal(settings: Settings) -> str:
    """The one-line message with which a server refuses to start."""
    with pytest.raises(Unusable) as refused:
        Store.open(settings).close()
    line = str(refused.value)
    assert "\n" not in line
    return line


def test_the_migrated_schema_is_the_present_one(settings: Settings) -> None:
    """Migrations of an empty database produce exactly the declared tables, including their primary keys."""
    Store.open(settings).close()
    opened = engine.open_engine(url_of(settings))
    with engine.reading(opened) as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, tables.metadata) == []
        assert migrations.differences(connection) == []
        assert migrations.schema(connection).age == "current"
        for table in tables.metadata.sorted_tables:
            made = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
            assert made == [column.name for column in table.primary_key]
    opened.dispose()


def test_a_newer_schema_is_refused(settings: Settings, changed) -> None:
    """A database with a newer schema is refused, with the command that upgrades ampmon."""
    changed("UPDATE alembic_version SET version_num = '9001'")

    assert "schema 9001): upgrade ampmon" in refusal(settings)


@pytest.mark.parametrize("number", ["0001", "0002", "0013"])
def test_the_schema_of_an_earlier_commit_is_refused(
    settings: Settings, changed, number: str
) -> None:
    """A database of an earlier commit is refused by its schema's number. The message says how to move its runs."""
    changed(f"UPDATE alembic_version SET version_num = '{number}'")
    line = refusal(settings)

    assert f"of an earlier commit of ampmon (schema {number}): export its runs with that" in line


def test_the_database_of_another_program_is_refused(settings: Settings, changed) -> None:
    """A database with another program's Alembic revision is refused."""
    changed("UPDATE alembic_version SET version_num = 'bd07f7e963c5'", "DROP TABLE alerts")

    assert "belongs to another program, whose schema is bd07f7e963c5" in refusal(settings)


@pytest.mark.parametrize(
    "statements",
    [["DELETE FROM alembic_version"], ["INSERT INTO alembic_version VALUES ('9000')"]],
)
def test_tables_of_no_version_are_refused(settings: Settings, changed, statements) -> None:
    """Tables with no revision, or with two, are refused because their version is unknown."""
    changed(*statements)

    assert "has ampmon tables, but its schema version is unclear" in refusal(settings)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DROP TABLE alerts", "table alerts is missing"),
        ("ALTER TABLE skips DROP COLUMN origin_module", "column origin_module of skips is missing"),
        (
            "ALTER TABLE runs ADD COLUMN more TEXT",
            "column more of runs does not belong to this version",
        ),
    ],
)
def test_an_altered_schema_is_refused(
    settings: Settings, changed, statement: str, reason: str
) -> None:
    """A missing table or column, or an extra column, is named, along with what to do.

    Which of the two helps, a copy or an export and an import, depends on who altered it: an earlier commit did, or not.
    """
    changed(statement)
    line = refusal(settings)

    assert reason in line
    assert "if an earlier commit of ampmon made it, export its runs with that commit" in line
    assert "COPY" in line
    assert ("ampmon db restore COPY" in line) == (settings.database_url is None)


def test_a_missing_table_that_others_refer_to_is_named_as_any_other() -> None:
    """Of a schema without the table of runs, that is all that is said, and no error is raised."""
    opened = create_engine("sqlite://")
    with opened.connect() as connection:
        tables.metadata.create_all(connection)
        connection.execute(text("DROP TABLE runs"))

        assert migrations.differences(connection) == ["table runs is missing"]
    opened.dispose()


def test_columns_that_do_not_belong_are_named_in_their_order() -> None:
    """Surplus columns are named in the order in which the table has them."""
    opened = create_engine("sqlite://")
    with opened.connect() as connection:
        tables.metadata.create_all(connection)
        for name in "zyxwvu":
            connection.execute(text(f"ALTER TABLE runs ADD COLUMN {name} TEXT"))

        assert [each.split()[1] for each in migrations.differences(connection)] == [*"zyxwvu"]
    opened.dispose()


def test_a_missing_index_is_refused_with_the_way_to_it(settings: Settings, changed) -> None:
    """The refusal for missing indexes gives the statements that recreate them; then the server starts."""
    changed("DROP INDEX ix_runs_changed", "DROP INDEX ix_attempts_run_id_attempt_id")
    line = refusal(settings)
    statements = line.split("in that database, run ")[1].partition(", or pass")[0]
    changed(*filter(None, map(str.strip, statements.split(";"))))

    assert statements.count("CREATE ") == 2
    Store.open(settings).close()


def test_what_others_made_is_left_alone(settings: Settings, changed) -> None:
    """Extra tables, views and indexes do not keep a server from starting."""
    changed(
        "CREATE TABLE notes (note TEXT)",
        "CREATE VIEW names AS SELECT name FROM runs",
        "CREATE INDEX ix_notes ON skips (time)",
    )

    Store.open(settings).close()


def test_a_migration_is_done_whole_or_not_at_all(
    settings: Settings, changed, later_revision: str
) -> None:
    """A migration that fails half-way leaves the schema and its revision unchanged."""
    changed("CREATE TABLE later_too (mine INTEGER)")
    line = refusal(settings)
    opened = engine.open_engine(url_of(settings))
    with engine.reading(opened) as connection:
        stands = migrations.schema(connection)
        tables = inspect(connection).get_table_names()
    opened.dispose()

    assert (stands.age, "later" in tables) == ("older", False)
    assert "later_too" in line or "ampmon db upgrade" in line


def test_many_servers_may_set_up_one_database(postgres: Postgres, tmp_path: Path) -> None:
    """Four servers that start at once on an empty PostgreSQL database all open it and store batches."""
    url = postgres.new_database()
    settings = [Settings(data_directory=tmp_path / str(n), database_url=url) for n in range(4)]
    with ThreadPoolExecutor(len(settings)) as pool:
        stores = list(pool.map(Store.open, settings))
    trainer = Trainer()
    for store in stores:
        store.ingest(trainer.batch(trainer.updates(1)))
    assert stores[0].run(trainer.run_id)[0].updates == 4
    for store in stores:
        store.close()
    postgres.drop(url)


def test_a_server_waits_for_another_to_change_the_schema(
    postgres: Postgres, empty_database: str, tmp_path: Path
) -> None:
    """A server waits for a running change of the schema, however short its ``lock_timeout`` is."""
    hurried = f"{empty_database}&options=-clock_timeout%3D1"
    changing = engine.open_engine(make_url(empty_database))
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor(1) as pool:
        with engine.writing(changing) as connection:
            postgresql.lock_schema(connection)
            store = pool.submit(Store.open, Settings(data_directory=tmp_path, database_url=hurried))
            wait_for(lambda: store.done() or postgres.execute(waiting) == [(1,)])
        store.result().close()
    changing.dispose()


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data directory on a network file system is refused with the flag to use, and is not created."""
    listed = tmp_path / "mountinfo"
    listed.write_text(f"1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / {tmp_path} rw - nfs4 nas:/ rw\n")
    monkeypatch.setattr(mounts, "MOUNTS", listed)
    line = refusal(Settings(data_directory=tmp_path / "data"))

    assert "network file system (nfs4)" in line
    assert "ampmon serve --database-url sqlite:////" in line
    assert not (tmp_path / "data").exists()


def test_a_server_is_not_ready_with_another_schema(client: TestClient, settings: Settings) -> None:
    """A server whose database was upgraded beneath it answers /readyz with 503 and asks for a restart."""
    assert client.get("/readyz").json()["status"] == "ready"
    database = create_engine(url_of(settings))
    with database.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.dispose()
    answer = client.get("/readyz")

    assert answer.status_code == 503
    assert "restart this server" in answer.json()["detail"]
