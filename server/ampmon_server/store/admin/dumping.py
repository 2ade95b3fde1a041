"""Copies of a PostgreSQL database, by its own programs; no password is in a command, where others could see it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import URL

from ampmon_server.store.admin.copying import beside, put, usable
from ampmon_server.store.engine import engine, postgresql
from ampmon_server.store.engine.errors import Busy, Unusable
from ampmon_server.store.schema import migrations
from ampmon_server.store.schema.migrations import VERSION_TABLE, Schema


_DUMP = ("pg_dump", "--format=custom", "--no-owner", "--no-privileges")
_RESTORE = (
    "pg_restore",
    "--no-owner",
    "--no-privileges",
    "--single-transaction",
    "--exit-on-error",
)
_REVISION = re.compile(rf"^COPY \S*{VERSION_TABLE} .*\n(\S+)$", re.MULTILINE)


def back_up(url: URL, target: Path) -> None:
    """Dump the database as it is now to ``target``, whole or not at all, readable by its owner only.

    Servers may write meanwhile. Raises Unusable.
    """
    with beside(target) as draft:
        _run([*_DUMP, f"--file={draft}"], url, shown=[*_DUMP, f"--file={target}"])
        put(draft, target)


def restore(copy: Path, url: URL) -> Schema:
    """Fill an empty database from a dump, wholly or not at all; the schema that it has. Raises Unusable."""
    if not copy.is_file():
        raise Unusable(f"{copy} is not there")
    schema = usable(_noted(copy), copy)
    if not _is_empty(url):
        raise Unusable(
            f"{postgresql.place(url)} is not empty: make another, createdb NAME, restore into that, and name it "
            "in --database-url; what is here stays as it is"
        )
    _run([*_RESTORE, str(copy)], url)
    return schema


def _is_empty(url: URL) -> bool:
    database = engine.open_engine(url.render_as_string(hide_password=False))
    try:
        with engine.reading(database) as connection:
            postgresql.check(connection, url)
            return migrations.schema(connection).age == "empty"
    except Busy as error:
        raise Unusable(f"{postgresql.place(url)} cannot be used: {error}") from None
    finally:
        database.dispose()


def _noted(copy: Path) -> Schema:
    """The schema that a dump says it has."""
    command = ["pg_restore", "--data-only", f"--table={VERSION_TABLE}", "--file=-", str(copy)]
    found = _REVISION.search(_told(command, command, {}))
    return Schema("foreign", None) if found is None else migrations.noted(found[1])


def _run(command: Sequence[str], url: URL, *, shown: Sequence[str] | None = None) -> None:
    from psycopg.conninfo import make_conninfo

    named = url.set(drivername=postgresql.DRIVER)
    _, opened = named.get_dialect()().create_connect_args(named)
    password = opened.pop("password", None)
    line = f"--dbname={make_conninfo(**opened)}"
    _told(
        [*command, line],
        [*(shown or command), line],
        {} if password is None else {"PGPASSWORD": str(password)},
    )


def _told(command: Sequence[str], shown: Sequence[str], secrets: dict[str, str]) -> str:
    """What a program prints. Raises Unusable where it is missing, with what to run where it is, or where it fails."""
    program = command[0]
    if shutil.which(program) is None:
        raise Unusable(
            f"{program} is not on the PATH: install PostgreSQL's client programs, or run where they are: "
            f"{shlex.join(shown)}"
        )
    done = subprocess.run(
        command, env={**os.environ, **secrets}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unusable(f"{program} failed: {lines[0].removeprefix(f'{program}: ')}")
    return done.stdout
