"""The SQLite database file: used by one server alone, and left as it is when it cannot be used."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.cli import main
from ampmon_server.settings import Settings
from ampmon_server.store import Busy, Store, Unusable, Verification
from ampmon_server.store.engine import engine, sqlite
from ampmon_server.store.engine.opening import open_to_read, url_of
from ampmon_server.store.schema import migrations
from batches import Trainer


SOMEBODY = 65534
"""A user other than root."""


@pytest.fixture
def used(tmp_path: Path) -> Settings:
    """Settings of a store that was opened and closed."""
    settings = Settings(data_directory=tmp_path)
    Store.open(settings).close()
    return settings


def test_an_upgraded_database_is_left_alone(used: Settings) -> None:
    """A second upgrade changes no byte."""
    before = (used.server_directory / "ampmon.db").read_bytes()
    opened = create_engine(url_of(used))
    with opened.begin() as connection:
        migrations.upgrade(connection)
    opened.dispose()

    assert (used.server_directory / "ampmon.db").read_bytes() == before


def test_an_sqlite_that_is_too_old_is_refused(
    used: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server names the version of SQLite that it found and the one that it needs."""
    monkeypatch.setattr("sqlite3.sqlite_version", "3.31.1")
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 31, 1))

    with pytest.raises(Unusable, match=r"^SQLite 3\.31\.1 .* is 3\.33 or newer"):
        Store.open(used)


def test_what_is_no_database_is_refused(used: Settings) -> None:
    """A file that is not an SQLite database is refused by server and reader alike, and left unchanged."""
    file = used.server_directory / "ampmon.db"
    noise = b"not a database, and long enough to see that" * 100
    file.write_bytes(noise)
    for opened in (Store.open, open_to_read):
        with pytest.raises(Unusable, match=r"cannot be used as a database .*: restore it"):
            opened(used)

    assert file.read_bytes() == noise


def test_a_full_disk_is_no_reason_to_restore(used: Settings) -> None:
    """If the disk takes nothing at the start, the message names the free space, and no older copy."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(Unusable, match=r"disk I/O error.*: check the free space"):
            Store.open(used)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_locked_file_is_no_reason_to_restore(
    used: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another program holds the lock at the start, the message says to stop it."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 10)
    monkeypatch.setattr(engine, "RETRY_S", 0.0)
    with closing(sqlite3.connect(used.database_file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unusable, match=r"is locked.*: stop the other program"):
            Store.open(used)
    Store.open(used).close()


@contextmanager
def not_as_root(*owned: Path) -> Iterator[None]:
    """Do without root's rights, which no mode of a file limits. ``owned`` belong to the user that acts instead."""
    if os.geteuid() != 0:
        yield
        return
    for path in owned:
        os.chown(path, SOMEBODY, SOMEBODY)
    os.seteuid(SOMEBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_file_that_cannot_be_written_is_refused_at_once() -> None:
    """A server does not start on a database that it may only read, and does once it may write it."""
    # Not pytest's folder, which another user may not enter.
    with tempfile.TemporaryDirectory() as place:
        settings = Settings(data_directory=Path(place))
        Store.open(settings).close()
        file = settings.database_file
        file.chmod(0o400)
        with not_as_root(Path(place), *settings.server_directory.iterdir(), file.parent):
            with pytest.raises(Unusable, match=r"ampmon.db cannot be used \(Permission denied\)"):
                Store.open(settings)
            file.chmod(0o600)
            Store.open(settings).close()


def test_a_new_reader_waits_for_no_writer(used: Settings) -> None:
    """A new connection reads while another process holds the write lock."""
    other = sqlite3.connect(used.server_directory / "ampmon.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    opened = engine.open_engine(url_of(used))
    with engine.reading(opened) as connection:
        assert migrations.schema(connection).age == "current"
    opened.dispose()
    other.close()


def test_two_servers_do_not_share_a_file(used: Settings) -> None:
    """A second server is refused while the first has the file open, with its process id, and let in afterwards."""
    first = Store.open(used)
    with pytest.raises(Unusable, match=rf"Another ampmon serve \(process {os.getpid()}\) uses"):
        Store.open(used)
    os.truncate(used.server_directory / "ampmon.db.lock", 0)  # as without space for the id
    with pytest.raises(Unusable, match="Another ampmon serve uses"):
        Store.open(used)
    first.close()

    Store.open(used).close()


@pytest.mark.parametrize("url", ["postgresql://db/ampmon", "nonsense", "sqlite://"])
def test_other_engines_are_refused(tmp_path: Path, url: str) -> None:
    """A database URL that this version cannot use is refused, and the message names --database-url."""
    with pytest.raises(Unusable, match="--database-url"):
        Store.open(Settings(data_directory=tmp_path, database_url=url))


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_nothing_is_acknowledged_into_a_file_that_is_gone(
    client: TestClient, settings: Settings, tmp_path: Path, replaced: bool
) -> None:
    """While its database file is removed or replaced, a server answers 503; when the file is back it recovers."""
    file, aside, trainer = settings.server_directory / "ampmon.db", tmp_path / "aside", Trainer()

    def sent() -> int:
        batch = wire.encode(trainer.batch(trainer.updates(1)))
        kind = {"Content-Type": "application/msgpack"}
        return client.post("/api/v1/ingest", content=batch, headers=kind).status_code

    assert (sent(), client.get("/readyz").status_code) == (200, 200)
    file.rename(aside)
    if replaced:
        shutil.copy(aside, file)
    answers = [(sent(), client.get("/readyz").status_code) for _ in range(4)]
    assert answers == [(503, 503)] * 4
    assert file.exists() == replaced
    assert client.get(f"/api/v1/runs/{trainer.run_id}").status_code == 503

    aside.replace(file)
    assert (sent(), client.get("/readyz").status_code) == (200, 200)


def test_nothing_is_acknowledged_into_a_log_that_is_gone(used: Settings) -> None:
    """Once its log is removed, a store is busy and says why. After it is closed, all that it stored is in the file."""
    store, trainer = Store.open(used), Trainer()
    store.ingest(trainer.batch(trainer.updates(3)))
    used.database_file.with_name("ampmon.db-wal").unlink()

    for _ in range(2):
        with pytest.raises(Busy, match="its log was removed or replaced"):
            store.ingest(trainer.batch(trainer.updates(1)))
        with pytest.raises(Busy, match="its log was removed"):
            store.run(trainer.run_id)
    store.close()
    store = Store.open(used)
    assert store.run(trainer.run_id)[0].updates == 3
    store.close()


def test_the_last_connection_removes_the_log_itself(used: Settings) -> None:
    """A new connection is allowed after all others are closed, because SQLite then deletes the log."""
    opened = engine.open_engine(url_of(used))
    log = used.database_file.with_name("ampmon.db-wal")
    for _ in range(2):
        with engine.writing(opened) as connection:
            connection.exec_driver_sql("DELETE FROM runs")
        assert log.exists()
        opened.raw_connection().invalidate()
        assert not log.exists()
    opened.dispose()


def test_a_log_that_a_reader_made_grow_shrinks_again(used: Settings) -> None:
    """Once a program that read for long is gone, the log gives its space back, although the server runs on."""
    store, trainer = Store.open(used), Trainer()
    log = used.database_file.with_name("ampmon.db-wal")
    with closing(sqlite3.connect(used.database_file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM v_runs").fetchall()
        with engine.writing(store._engine) as connection:
            connection.exec_driver_sql("CREATE TABLE much (data)")
            connection.exec_driver_sql("INSERT INTO much VALUES (zeroblob(20000000))")
        assert log.stat().st_size > 20_000_000
    for _ in range(3):
        store.ingest(trainer.batch(trainer.updates(1)))
    assert log.stat().st_size < 20_000_000
    store.close()


@pytest.mark.parametrize(
    "name", ["feature%2Fx", "%41", "a?b", "a?mode=ro", "a#b", "a b", "ünï", "file:x"]
)
def test_the_file_lies_in_the_data_directory(tmp_path: Path, name: str) -> None:
    """The database lies in its data directory, whatever the name of that, and readers and backups find it there."""
    settings, trainer = Settings(data_directory=tmp_path / name), Trainer()
    store = Store.open(settings)
    store.ingest(trainer.batch(trainer.updates(3)))
    store.close()

    assert list(tmp_path.iterdir()) == [settings.data_directory]
    assert settings.database_file.exists()
    with Verification.begin(settings, repair=False) as verification:
        assert verification.database == str(settings.database_file)
        assert verification.runs(None) == [trainer.run_id]
    copy = tmp_path / "copy.db"
    assert main(["db", "backup", str(copy), "--data-dir", str(settings.data_directory)]) == 0
    assert copy.exists()
