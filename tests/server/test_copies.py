"""`ampmon db backup` and `ampmon db restore`: complete copies of a running server, and safe restores."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

from alembic import command
from sqlalchemy import URL

from ampmon_server.settings import Settings
from ampmon_server.store import Store, Verification
from ampmon_server.store.engine import engine
from ampmon_server.store.schema import migrations
from batches import Trainer
from posted import post
from postgres import USER, Postgres, programs
from serving import Server
from typed import typed
from warm import completed, start


def run_db(*words: str | Path) -> tuple[int, str]:
    """Run `ampmon db` in this process. Return its exit code and last line."""
    code, out, err = typed("db", *words)
    return code, (err if code else out).strip().splitlines()[-1]


def filled(settings: Settings, trainer: Trainer, updates: int = 3) -> None:
    store = Store.open(settings)
    store.ingest(trainer.batch(trainer.updates(updates)))
    store.close()


def held(settings: Settings, trainer: Trainer) -> int:
    """The number of stored updates of the run."""
    store = Store.open(settings)
    try:
        return store.run(trainer.run_id)[0].updates
    finally:
        store.close()


def in_folder(folder: Path) -> dict[str, bytes]:
    """The content of each file of a folder, by name."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_copy_is_taken_while_a_server_writes(server: Server, tmp_path: Path) -> None:
    """A backup beside a writing server is one sound, owner-only file. It overwrites none without --force."""
    trainer, copy = Trainer(), tmp_path / "copy" / "copy.db"
    copy.parent.mkdir()
    post(server, trainer.batch(trainer.updates(500, sampled=range(100))))
    log = tmp_path / "backup.log"
    for _ in range(20):  # a busy machine may write only one batch beside a copy
        copy.unlink(missing_ok=True)
        copying = start(["db", "backup", str(copy), "--data-dir", str(server.directory)], log)
        batches = 0
        while copying.poll() is None:
            post(server, trainer.batch(trainer.updates(5)))
            batches += 1
        assert copying.returncode == 0, log.read_text()
        if batches > 1:
            break
    again = completed(["db", "backup", str(copy), "--data-dir", str(server.directory)])

    assert batches > 1
    assert [file.name for file in copy.parent.iterdir()] == ["copy.db"]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert "checked and intact" in log.read_text()
    assert (again.returncode, "pass --force" in again.stderr) == (2, True)
    settings = Settings(data_directory=tmp_path, database_url=f"sqlite:///{copy}")
    with Verification.begin(settings, repair=False) as verification:
        assert verification.broken() == verification.run(trainer.run_id) == []
    assert 500 <= held(settings, trainer) <= 500 + 5 * batches


def test_no_copy_replaces_a_device(settings: Settings, tmp_path: Path) -> None:
    """A backup to what is no file, such as /dev/null, is refused with --force too."""
    filled(settings, Trainer())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code, line = run_db("backup", pipe, "--force", "--data-dir", settings.data_directory)

    assert (code, line) == (2, f"ampmon db backup: {pipe} already exists: pass another file")
    assert pipe.is_fifo()


def test_a_copy_is_put_back(server: Server, tmp_path: Path) -> None:
    """A restore refuses while a server runs, then brings back the copy and keeps the old file under another name."""
    trainer, copy = Trainer(), tmp_path / "copy.db"
    where = ["--data-dir", str(server.directory)]
    post(server, trainer.batch(trainer.updates(3)))
    assert completed(["db", "backup", str(copy), *where]).returncode == 0
    post(server, trainer.batch(trainer.updates(4)))
    refused = completed(["db", "restore", str(copy), *where])
    server.stop()
    done = completed(["db", "restore", str(copy), *where])
    (aside,) = (server.directory / "server").glob("ampmon.db.2*")
    with closing(sqlite3.connect(aside)) as before:
        kept = before.execute("SELECT updates FROM runs").fetchall()
    server.start()

    assert (refused.returncode, "Another ampmon serve" in refused.stderr) == (2, True)
    assert (done.returncode, str(aside) in done.stdout) == (0, True)
    assert "ampmon token list" in done.stderr
    assert kept == [(7,)]
    assert server.get(f"/runs/{trainer.run_id}")["updates"] == 3


def test_no_copy_replaces_the_database(settings: Settings, tmp_path: Path) -> None:
    """A backup onto the database itself, by any name, is refused with and without --force, and changes nothing."""
    trainer, link = Trainer(), tmp_path / "link.db"
    filled(settings, trainer)
    link.symlink_to(settings.database_file)
    before = settings.database_file.stat().st_ino
    for file in (settings.database_file, link):
        code, line = run_db("backup", "--force", file, "--data-dir", settings.data_directory)
        assert (code, line) == (
            2,
            f"ampmon db backup: {file} is the database itself: pass another file",
        )
    assert settings.database_file.stat().st_ino == before
    assert link.is_symlink()


def test_a_log_that_was_left_behind_is_not_the_copys(server: Server, tmp_path: Path) -> None:
    """A restore also moves aside a leftover WAL file, so the data is the copy's alone."""
    trainer, copy = Trainer(), tmp_path / "copy.db"
    where = ["--data-dir", str(server.directory)]
    post(server, trainer.batch(trainer.updates(3)))
    assert completed(["db", "backup", str(copy), *where]).returncode == 0
    post(server, trainer.batch(trainer.updates(4)))
    server.kill()
    file = server.directory / "server" / "ampmon.db"
    file.rename(tmp_path / "away.db")
    left = file.with_name("ampmon.db-wal").read_bytes()
    done = completed(["db", "restore", str(copy), *where])
    (aside,) = file.parent.glob("ampmon.db.2*-wal")
    server.start()

    assert (done.returncode, str(aside) in done.stdout) == (0, True)
    assert aside.read_bytes() == left != b""
    assert server.get(f"/runs/{trainer.run_id}")["updates"] == 3


def test_no_bad_copy_is_put_back(settings: Settings, tmp_path: Path) -> None:
    """A damaged, truncated, newer, outdated, foreign or missing copy is refused, and nothing changes."""
    trainer, good = Trainer(), tmp_path / "good.db"
    filled(settings, trainer)
    where = ("--data-dir", settings.data_directory)
    assert run_db("backup", good, *where)[0] == 0
    whole = good.read_bytes()
    of_schema = {"newer": "9001", "earlier": "0002", "foreign": "bd07f7e963c5"}
    bad = {name: tmp_path / f"{name}.db" for name in ("damaged", "cut", *of_schema, "away")}
    middle = len(whole) // 2
    bad["damaged"].write_bytes(whole[:middle] + bytes(8192) + whole[middle + 8192 :])
    bad["cut"].write_bytes(whole[: middle - middle % 4096])
    for name, revision in of_schema.items():
        shutil.copy(good, bad[name])
        with closing(sqlite3.connect(bad[name])) as changed:
            changed.execute("UPDATE alembic_version SET version_num = ?", [revision])
            changed.commit()
    before = in_folder(settings.server_directory)
    answers = {name: run_db("restore", file, *where) for name, file in bad.items()}

    assert {code for code, _ in answers.values()} == {2}
    assert {
        name: line.count(str(bad[name])) for name, (_, line) in answers.items()
    } == dict.fromkeys(bad, 1)
    assert "upgrade ampmon" in answers["newer"][1]
    assert "export its runs with that commit" in answers["earlier"][1]
    assert in_folder(settings.server_directory) == before
    assert held(settings, trainer) == 3


def test_an_older_copy_is_brought_up_to_date(tmp_path: Path, later_revision: str) -> None:
    """A copy of an older schema is restored, and opening the store upgrades it."""
    older = tmp_path / "older.db"
    database = engine.open_engine(URL.create("sqlite", database=str(older)))
    with engine.writing(database) as connection:
        command.upgrade(migrations.config(connection), f"{later_revision}-1")
    database.dispose()
    settings, trainer = Settings(data_directory=tmp_path / "data"), Trainer()
    code, _ = run_db("restore", older, "--data-dir", settings.data_directory)
    filled(settings, trainer)

    assert code == 0
    assert held(settings, trainer) == 3


def test_a_full_disk_leaves_what_was_there(settings: Settings, tmp_path: Path) -> None:
    """A backup that cannot be written says so, leaves no partial file and keeps an earlier backup."""
    filled(settings, Trainer())
    earlier = tmp_path / "copies" / "copy.db"
    earlier.parent.mkdir()
    earlier.write_bytes(b"an earlier one")
    words = ("backup", earlier, "--force", "--data-dir", settings.data_directory)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        code, line = run_db(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert code == 2
    assert "cannot be written" in line
    assert in_folder(earlier.parent) == {"copy.db": b"an earlier one"}


def test_postgresql_is_copied_by_its_own_programs() -> None:
    """For PostgreSQL, both commands name the programs to use instead."""
    where = ("--database-url", "postgresql+psycopg://ampmon@db.example/ampmon")
    for words in (("backup",), ("restore", "ampmon.dump")):
        code, line = run_db(*words, *where)
        assert code == 2
        assert "pg_dump --format=custom" in line
        assert "pg_restore --no-owner --role=ROLE" in line


def test_a_dump_of_postgresql_is_whole(
    postgres: Postgres, migrated: str, empty_database: str, tmp_path: Path
) -> None:
    """pg_dump and pg_restore, with the suggested options, copy all updates into an empty database."""
    url = postgres.new_database(migrated)
    trainer, dump = Trainer(), tmp_path / "ampmon.dump"
    filled(Settings(data_directory=tmp_path / "data", database_url=url), trainer)
    plain, empty = (each.replace("+psycopg", "", 1) for each in (url, empty_database))
    options = ["--no-owner", f"--role={USER}", "--single-transaction", f"--dbname={empty}"]
    for command_ in (
        ["pg_dump", "--format=custom", "--no-owner", f"--file={dump}", plain],
        ["pg_restore", *options, str(dump)],
    ):
        subprocess.run([f"{programs()}/{command_[0]}", *command_[1:]], check=True)
    put_back = Settings(data_directory=tmp_path / "other", database_url=empty_database)

    assert held(put_back, trainer) == 3
    postgres.drop(url)
