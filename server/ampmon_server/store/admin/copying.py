"""Backs up an SQLite file while a server writes to it, and restores a copy while no server runs."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from ampmon.spool.layout import sync_path
from ampmon_server.settings import Settings
from ampmon_server.store.engine import engine, sqlite
from ampmon_server.store.engine.errors import StoreError, Unusable
from ampmon_server.store.engine.opening import of_other_version, url_of
from ampmon_server.store.schema import migrations


PAGES = 4096
"""Pages copied in one step: 16 MiB. Progress is reported after each step."""

OnProgress = Callable[[int, int], None]


def file_of(settings: Settings) -> Path | None:
    """Return the file of an SQLite database, or None for any other database. Raises Unusable for an invalid URL."""
    url = url_of(settings)
    return Path(url.database or "") if url.drivername == "sqlite" else None


def back_up(source: Path, target: Path, on_progress: OnProgress) -> None:
    """Copy the database as it is now to ``target``, readable by its owner only. A failure leaves no partial file.

    Servers may write meanwhile. ``on_progress`` gets the number of pages done and of all pages. Raises Unusable.
    """
    if not source.exists():
        raise Unusable(f"{source} does not exist: pass a --data-dir")
    if target.exists() and target.samefile(source):
        raise Unusable(f"{target} is the database itself: pass another file")
    with _beside(target) as draft:
        _copy(source, draft, on_progress)
        found = _unsound(draft)
        if found is not None:
            raise Unusable(f"{source} is damaged ({found}): see ampmon db verify")
        _put(draft, target)


def restore(copy: Path, target: Path, aside: Path, on_progress: OnProgress) -> Path | None:
    """Replace ``target`` with a copy and keep the old files under the name ``aside``.

    Return the first of the old files, or None if there were none. Raises Unusable and changes nothing if a server
    runs, or if the copy is damaged, from a newer version or not a database of ampmon.
    """
    if not copy.is_file():
        raise Unusable(f"{copy} does not exist")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unusable(f"{target.parent} cannot be created ({error.strerror})") from None
    with sqlite.lock(target.with_name(target.name + ".lock")), _beside(target) as draft:
        _copy(copy, draft, on_progress)
        found = _unsound(draft)
        if found is not None:
            raise Unusable(f"{copy} is damaged ({found}): take another copy")
        _check(draft, copy)
        before = _set_aside(target, aside)
        _put(draft, target)
    return before


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a new file in the folder of ``target``, readable by its owner only, and delete it at the end.

    Turns file and SQLite errors within the block into Unusable.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        try:
            yield Path(name)
        finally:
            for end in ("", "-wal", "-shm", "-journal"):
                with suppress(FileNotFoundError):
                    os.unlink(name + end)
    except OSError as error:
        raise Unusable(f"{target} cannot be written ({error.strerror})") from None
    except sqlite3.Error as error:
        raise Unusable(f"{target} cannot be written: {error}") from None


def _copy(source: Path, draft: Path, on_progress: OnProgress) -> None:
    try:
        with closing(_opened(source)) as old, closing(sqlite3.connect(draft)) as new:
            # Hold one snapshot from here on. Without it, each write of a server would restart the copy.
            old.execute("BEGIN")
            old.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            old.backup(
                new, pages=PAGES, progress=lambda _, left, all_: on_progress(all_ - left, all_)
            )
            new.execute("PRAGMA journal_mode = DELETE")  # a single file, without -wal and -shm
    except sqlite.ERRORS as error:
        if sqlite.is_damage(error):
            raise Unusable(f"{source} cannot be read as a database ({error})") from None
        raise


def _opened(file: Path) -> sqlite3.Connection:
    # Not read-only: in WAL mode, SQLite must be able to create the file with its index of the log.
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)


def _unsound(file: Path) -> str | None:
    """The first problem that SQLite finds in a file, or None if the file is sound."""
    try:
        with closing(_opened(file)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite.ERRORS as error:
        return str(error)
    return None if found == "ok" else " ".join(str(found).split())


def _check(draft: Path, copy: Path) -> None:
    """Raise Unusable for a copy that this version cannot use."""
    database = engine.open_engine(URL.create("sqlite", database=str(draft)))
    try:
        with engine.reading(database) as connection:
            schema = migrations.schema(connection)
    except (StoreError, DBAPIError) as error:
        raise Unusable(f"{copy} cannot be read: {error}") from None
    finally:
        database.dispose()
    if schema.age not in {"older", "current"}:
        other = of_other_version(schema, str(copy))
        raise Unusable(other or f"{copy} is not an ampmon database")


def _set_aside(target: Path, aside: Path) -> Path | None:
    """Give an unused database a second name, and return the first file under that name, or None if there is none.

    The old name stays until the copy replaces it: a server that finds no database would create one.
    """
    with suppress(*sqlite.ERRORS), closing(_opened(target)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # moves everything into the one file
    with suppress(FileNotFoundError):
        os.link(target, aside)
    # The logs remain if the database is damaged or missing. SQLite would take them for logs of the copy.
    logs = ("-wal", "-shm", "-journal")
    for end in logs:
        with suppress(FileNotFoundError):
            os.replace(f"{target}{end}", f"{aside}{end}")
    found = (Path(f"{aside}{end}") for end in ("", *logs))
    return next((file for file in found if file.exists()), None)


def _put(draft: Path, target: Path) -> None:
    """Rename the draft to the target. Sync its content to disk before, and the directory after."""
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(draft, target)
    sync_path(target.parent)
