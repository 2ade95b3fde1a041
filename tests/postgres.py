"""A PostgreSQL server for tests: in a temporary folder, on a Unix socket, removed at the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from tools import POSTGRESQL
from waiting import DEADLINE_S, wait_for


DRIVER = "postgresql+psycopg"
USER = "ampmon"
STRANGER = "stranger"
"""The only role that needs a password."""
UNPRIVILEGED = "nobody"
"""The user that runs the server if the tests run as root, which PostgreSQL refuses."""
# No data has to survive.
SETTINGS = (
    "listen_addresses=",
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "max_connections=60",
    "autovacuum=off",
    "jit=off",
    "max_parallel_workers_per_gather=0",
)


class Postgres:
    """A server in a folder. Databases are identified by the URL for `ampmon serve --database-url`."""

    def __init__(self, folder: Path, settings: Sequence[str] = SETTINGS) -> None:
        self.folder = folder
        self.settings = settings
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._said = 0
        """Where the log of this process begins."""

    @property
    def process(self) -> int:
        """The id of the server's process, which starts one for each connection."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it answers. Raises RuntimeError if it ends instead."""
        self._launch()
        wait_for(self._answers, "PostgreSQL")

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._said = log.tell()
            self._process = subprocess.Popen(
                [programs() / "postgres", "-D", self.folder / "data", "-k", self.folder]
                + [word for setting in self.settings for word in ("-c", setting)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=_user(),
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C goes to pytest, which then ends the server
            )

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is None:
            return self.lets_in()
        said = (self.folder / "log").read_bytes()[self._said :].decode()
        # A backend has a session of its own, so it outlives a killed server for a moment, with the memory they shared.
        if "pre-existing shared memory block" not in said:
            raise RuntimeError(f"PostgreSQL ended: {said}")
        self._launch()
        return False

    def stop(self) -> None:
        """End the server and its connections."""
        if self._process is not None:
            _stop(self._process)

    def kill(self) -> None:
        """Kill all its processes at once, as a machine failure does."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def url(self, database: str = "postgres", *, user: str = USER, driver: str = DRIVER) -> str:
        return f"{driver}://{user}@/{database}?host={self.folder}"

    def new_database(self, template: str = "template0", *, options: str = "") -> str:
        """Return the URL of a new database: empty, or a copy of ``template``, which must have no connections."""
        self._count += 1
        name = f"test_{self._count}"
        # Copying through the log, the default, takes twice as long.
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY {options}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Drop a database that `new_database` made, and its connections."""
        self.execute(f"DROP DATABASE IF EXISTS {make_url(url).database} WITH (FORCE)")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement as the superuser on a new connection and return its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return list(cursor.fetchall()) if cursor.description else []

    def lets_in(self) -> bool:
        """Whether it accepts one more connection. A slot becomes free some time after its client has closed."""
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        """A new connection in autocommit mode."""
        return psycopg.connect(self.url(database, driver="postgresql"), autocommit=True)


@contextmanager
def running(settings: Sequence[str] = SETTINGS) -> Iterator[Postgres]:
    """A server for a block. Raises RuntimeError if PostgreSQL is not installed or does not start."""
    with _folder() as folder:
        _initialise(programs(), folder, _user())
        yield from _served(Postgres(folder, settings))


@contextmanager
def following(primary: Postgres) -> Iterator[Postgres]:
    """A standby of another server, with the application name `standby` for synchronous replication."""
    with _folder() as folder:
        line = f"host={primary.folder} user={USER} application_name=standby"
        command = [str(programs() / "pg_basebackup"), "--dbname", line, "--pgdata", folder / "data"]
        command += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--no-manifest"]
        subprocess.run(command, check=True, capture_output=True, user=_user(), cwd=folder)
        yield from _served(Postgres(folder, primary.settings))


def _served(server: Postgres) -> Iterator[Postgres]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _folder() -> Iterator[Path]:
    # Not pytest's folder: a socket's path has at most 107 characters, and another user must reach it.
    folder = Path(tempfile.mkdtemp(prefix="ampmon-pg-"))
    try:
        if (user := _user()) is not None:
            shutil.chown(folder, user)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str | None:
    return UNPRIVILEGED if os.geteuid() == 0 else None


@cache
def programs() -> Path:
    """The folder of PostgreSQL's programs. Raises RuntimeError if there is none."""
    if (found := POSTGRESQL.find()) is None:
        raise RuntimeError(POSTGRESQL.missing)
    return found


def _initialise(programs: Path, folder: Path, user: str | None) -> None:
    command = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", USER]
    command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    subprocess.run(command, check=True, capture_output=True, user=user, cwd=folder)
    rules = folder / "data" / "pg_hba.conf"
    rules.write_text(f"local all {STRANGER} scram-sha-256\n{rules.read_text()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)  # does not wait for open connections
    process.wait(DEADLINE_S)
