"""``ampmon db backup`` and ``restore`` of an SQLite file: backup works while servers run, restore does not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from ampmon_server.cli.db import settings_of
from ampmon_server.cli.exits import CANNOT
from ampmon_server.cli.progress import progress
from ampmon_server.settings import Settings
from ampmon_server.store import Unusable
from ampmon_server.store.admin import copying


_GO_ON = """\
Running trainings continue without help. Records acknowledged after the copy was made are missing, because trainers
no longer have them; the page shows a gap. Runs deleted and tokens revoked since then are back: see ampmon token list.
Tokens created since then are unknown: create them again."""


def run(arguments: argparse.Namespace) -> int:
    """Run one of the two. Return 0, or 2 with a line that says why it did nothing."""
    does = {"backup": _back_up, "restore": _restore}
    try:
        does[arguments.what](arguments)
    except Unusable as problem:
        print(f"ampmon db {arguments.what}: {problem}", file=sys.stderr)
        return CANNOT
    return 0


def _back_up(arguments: argparse.Namespace) -> None:
    database = _file_of(settings_of(arguments))
    target: Path = (arguments.file or Path(f"ampmon-{_now()}.db")).absolute()
    if target.exists() and not arguments.force:
        raise Unusable(f"{target} already exists: name another file, or pass --force")
    with _progress_bar("copying") as on_progress:
        copying.back_up(database, target, on_progress)
    print(f"{target}: {target.stat().st_size:,} bytes, checked and intact")


def _restore(arguments: argparse.Namespace) -> None:
    database = _file_of(settings_of(arguments))
    aside = database.with_name(f"{database.name}.{_now()}")
    with _progress_bar("restoring") as on_progress:
        before = copying.restore(arguments.file.absolute(), database, aside, on_progress)
    was = "" if before is None else f"; the old database is {before}"
    print(f"{database} is restored from the copy{was}")
    print(_GO_ON, file=sys.stderr)


def _file_of(settings: Settings) -> Path:
    file = copying.file_of(settings)
    if file is None:
        raise Unusable(
            "copy PostgreSQL with its own programs: pg_dump --format=custom --no-owner --file=ampmon.dump DATABASE; "
            "restore into an empty database: pg_restore --no-owner --single-transaction --dbname=EMPTY ampmon.dump"
        )
    return file


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")


@contextmanager
def _progress_bar(what: str) -> Iterator[copying.OnProgress]:
    """Show a progress bar during the block, and yield the function that moves it."""
    with progress() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
