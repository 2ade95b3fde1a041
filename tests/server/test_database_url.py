"""Error messages for a --database-url that does not work, and `ampmon db upgrade`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from ampmon.system import installing
from ampmon_server.settings import Settings
from ampmon_server.store import Store, Unusable
from batches import Trainer
from postgres import STRANGER, Postgres
from serving import free_port
from typed import typed


SECRET = "s3cr3t"


def refusal(url: str, directory: Path) -> str:
    """The one-line error of a server that refuses to start. Check that it hides the password."""
    with pytest.raises(Unusable) as refused:
        Store.open(Settings(data_directory=directory, database_url=url)).close()
    line = str(refused.value)
    assert "\n" not in line
    assert SECRET not in line
    assert SECRET not in repr(refused.value.__cause__)
    return line


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ampmon.db", "such as sqlite:////data/ampmon.db or postgresql+psycopg://"),
        (f"postgresql+psycopg://ada@host:{SECRET}/db", "write @ / : % as"),
        (f"postgresql+psycopg://ada:p@{SECRET}@host/db", "write @ / : % as"),
        (f"postgresql+psycopg://ada:p@x/{SECRET}@host/db", "write @ / : % as"),
        (f"mysql://ada:{SECRET}@host/db", "mysql is not supported; use sqlite or"),
        (f"postgresql+psycopg2://ada:{SECRET}@host/db", "write postgresql+psycopg:// instead of"),
        (f"postgresql+asyncpg://ada:{SECRET}@host/db", "write postgresql+psycopg:// instead of"),
        ("postgresql://ada@/db?host=a&port=x", "Received non-integer port arguments"),
        ("sqlite://", "name a file"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(tmp_path: Path, url: str, says: str) -> None:
    """An invalid URL, or one for another driver, is rejected with the form to write."""
    assert says in refusal(url, tmp_path)


@pytest.mark.parametrize("scheme", ["postgres", pytest.param("postgresql", marks=pytest.mark.rare)])
def test_shorter_names_of_postgresql_are_understood(
    postgres: Postgres, tmp_path: Path, empty_database: str, scheme: str
) -> None:
    """A PostgreSQL URL without the driver name is accepted."""
    url = empty_database.replace("postgresql+psycopg", scheme)
    Store.open(Settings(data_directory=tmp_path, database_url=url)).close()

    assert postgres.execute("SELECT * FROM runs", str(make_url(url).database)) == []


def test_without_psycopg_the_way_to_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without psycopg the error says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)

    assert installing.install("postgres") in refusal("postgresql://host/db", tmp_path)


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    """If nothing listens, the error says so, names database, host and port, and says to check them."""
    port = free_port()
    for url in (
        f"postgresql+psycopg://ada:{SECRET}@127.0.0.1:{port}/runs",
        f"postgresql+psycopg://127.0.0.1:{port}/runs?user=ada&password={SECRET}",
    ):
        line = refusal(url, tmp_path)
        assert f"database 'runs' on 127.0.0.1:{port} cannot be used" in line
        assert "failed: Connection refused): check host and port" in line


def test_a_database_that_is_missing_is_named(postgres: Postgres, tmp_path: Path) -> None:
    """For a missing database or user, the error names the command that creates it."""
    assert "createdb nowhere" in refusal(postgres.url("nowhere"), tmp_path)
    assert "createuser nobody" in refusal(postgres.url(user="nobody"), tmp_path)


def test_a_user_without_the_right_learns_what_to_ask_for(
    postgres: Postgres, tmp_path: Path, empty_database: str
) -> None:
    """For a wrong password or missing rights, the error says how to fix it."""
    postgres.execute("CREATE ROLE guest LOGIN")
    postgres.execute(f"CREATE ROLE {STRANGER} LOGIN PASSWORD 'another'")
    guest, stranger = (make_url(empty_database).set(username=name) for name in ("guest", STRANGER))

    line = refusal(guest.render_as_string(), tmp_path)
    assert "(permission denied for schema public): " in line
    assert 'GRANT CREATE ON SCHEMA public TO "guest"' in line
    wrong = stranger.set(password=SECRET).render_as_string(hide_password=False)
    assert "PGPASSWORD or ~/.pgpass" in refusal(wrong, tmp_path)


def test_a_database_that_cannot_hold_every_name_is_refused(
    postgres: Postgres, tmp_path: Path
) -> None:
    """A database without UTF-8 is rejected with the command that creates one."""
    url = postgres.new_database(options="ENCODING 'LATIN1'")

    assert "createdb -E UTF8" in refusal(url, tmp_path)
    postgres.drop(url)


@pytest.fixture
def older(
    empty_database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> tuple[Settings, Trainer]:
    """A PostgreSQL database with a run, at a schema older than this version's."""
    settings = Settings(data_directory=tmp_path / "data", database_url=empty_database)
    trainer = Trainer()
    store = Store.open(settings)
    store.ingest(trainer.batch(trainer.updates(5, skipped=[2], sampled=[0, 4])))
    store.close()
    request.getfixturevalue("later_revision")
    return settings, trainer


def test_an_older_schema_is_upgraded_on_command(older: tuple[Settings, Trainer]) -> None:
    """A server rejects an older schema and names the upgrade command. Running it twice upgrades once."""
    settings, trainer = older
    line = refusal(settings.database_url, settings.data_directory)
    words = line.partition("run ampmon ")[2].split()
    first, last = typed(*words), typed(*words)

    assert words[:3] == ["db", "upgrade", "--database-url"]
    assert make_url(words[3]) == make_url(settings.database_url)
    assert (first.code, last.code) == (0, 0)
    assert "the schema is upgraded to 9000 (" in first.out.splitlines()[0]
    assert "the schema is up to date" in last.out.splitlines()[-1]
    store = Store.open(settings)
    assert store.run(trainer.run_id)[0].skipped == 1
    store.close()


def test_an_upgrade_that_a_reader_blocks_says_so(
    older: tuple[Settings, Trainer], postgres: Postgres
) -> None:
    """While another program holds a lock, `ampmon db upgrade` says how to find it, and changes nothing."""
    url = make_url(older[0].database_url)
    impatient = url.update_query_dict({"options": "-c lock_timeout=50"}).render_as_string()
    command = ("db", "upgrade", "--database-url", impatient)
    with postgres.connect(str(url.database)) as reader, reader.transaction():
        reader.execute("LOCK TABLE alembic_version IN SHARE MODE")
        code, _, err = typed(*command)

    assert code == 2
    assert "lock timeout): another program's transaction holds a lock there" in err
    assert typed(*command).code == 0


def test_an_upgrade_that_cannot_be_says_why(settings: Settings) -> None:
    """`ampmon db upgrade` refuses in one line while a server uses the SQLite file, and works afterwards."""
    upgrade = ("db", "upgrade", "--data-dir", settings.data_directory)
    store = Store.open(settings)
    code, out, err = typed(*upgrade)
    store.close()

    assert (code, out) == (2, "")
    assert err.startswith("ampmon db upgrade: Another ampmon serve (process ")
    assert typed(*upgrade).code == 0


@pytest.mark.parametrize("command", ["upgrade", "verify", "prune", "prune --yes"])
def test_a_command_on_a_missing_database_creates_none(command: str, tmp_path: Path) -> None:
    """In a mistyped data directory, or without --database-url, a command says in a line that there is no database."""
    name, *flags = command.split()
    code, _, err = typed("db", name, *flags, "--data-dir", tmp_path / "typo")

    (line,) = err.splitlines()
    assert code == 2
    assert line.startswith(f"ampmon db {name}: There is no database at")
    assert not (tmp_path / "typo").exists()
