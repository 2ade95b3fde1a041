"""``ampmon db`` except ``prune``: upgrades, verifies, copies, restores and distributes a database."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from uuid import UUID

from ampmon.config import data_directory
from ampmon_server.cli.progress import progress
from ampmon_server.model.words import plural
from ampmon_server.settings import Settings
from ampmon_server.store import Defect, Distribution, Unusable, Verification
from ampmon_server.store import upgrade as upgrade_schema
from ampmon_server.store.admin import copying


FOUND = 1
"""Exit code if there are defects."""

_GO_ON = """\
Running trainings continue without help. Records acknowledged after the copy was made are missing, because trainers
no longer have them: the page shows a gap, or an earlier end of runs that have ended. Runs deleted and tokens revoked
since then are back: see ampmon token list. Tokens created since then are unknown: create them again."""


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings of the database that a sub-command works on."""
    directory = arguments.data_dir or data_directory()
    return Settings(
        data_directory=directory.expanduser().absolute(), database_url=arguments.database_url
    )


def upgrade(arguments: argparse.Namespace) -> None:
    """Upgrade the database to this version, while no server uses it."""
    database, before, after = upgrade_schema(settings_of(arguments))
    if before == after:
        print(f"{database}: the schema is up to date ({after})")
    else:
        print(f"{database}: the schema is upgraded to {after} (before: {before or 'empty'})")


def verify(arguments: argparse.Namespace) -> int:
    """Print the defects, one a line. With --repair, rebuild what is derived. Return 0, or 1 if there are defects."""
    found = 0
    with Verification.begin(settings_of(arguments), repair=arguments.repair) as verification:
        for finding in _findings(verification, arguments.run, repair=arguments.repair):
            print(finding, flush=True)
            found += 1
        print(f"{verification.database}: {plural(found, 'defect')} found", file=sys.stderr)
    return FOUND if found else 0


def _findings(verification: Verification, only: UUID | None, *, repair: bool) -> Iterator[Defect]:
    """Yield the defects. With ``repair``, yield only those left after the repair."""
    with progress() as bar:
        task = bar.add_task("verifying", total=None)
        broken = verification.broken()
        yield from broken
        if broken:
            return
        if only is None:
            found = verification.strays()
            if found and repair:
                verification.sweep()
                found = verification.strays()
            yield from found
        wanted = verification.runs(only)
        bar.update(task, total=len(wanted))
        for run_id in wanted:
            found = verification.run(run_id)
            if found and repair:
                verification.repair(run_id)
                found = verification.run(run_id)
            yield from found
            bar.advance(task)


def back_up(arguments: argparse.Namespace) -> None:
    """Copy an SQLite file, also while servers run."""
    database = _file_of(settings_of(arguments))
    target: Path = (arguments.file or Path(f"ampmon-{_now()}.db")).absolute()
    if target.exists() and not (arguments.force and target.is_file()):
        rest = ", or pass --force" if target.is_file() else ""
        raise Unusable(f"{target} already exists: pass another file{rest}")
    with _progress_bar("copying") as on_progress:
        copying.back_up(database, target, on_progress)
    print(f"{target}: {target.stat().st_size:,} bytes, checked and intact")


def restore(arguments: argparse.Namespace) -> None:
    """Restore a copy, while no server runs."""
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
            "restore into an empty database, for the ROLE of the server: "
            "pg_restore --no-owner --role=ROLE --single-transaction --dbname=EMPTY ampmon.dump"
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


def distribute(arguments: argparse.Namespace) -> None:
    """Spread runs over the nodes of a Citus cluster, or print the SQL for it."""
    with Distribution.begin(settings_of(arguments)) as distribution:
        if arguments.dry_run:
            _show(distribution)
        else:
            _distribute(distribution)


def _show(distribution: Distribution) -> None:
    """Print the statements on stdout for psql, in the one transaction that `_distribute` would use."""
    for statement in ("BEGIN", *(step.statement for step in distribution.steps), "COMMIT"):
        print(f"{statement};")
    left = len({step.table for step in distribution.steps})
    print(f"{distribution.database}: {left} tables are to be distributed", file=sys.stderr)


def _distribute(distribution: Distribution) -> None:
    done = set()
    with progress() as bar:
        task = bar.add_task("distributing", total=len(distribution.steps))
        for step in distribution.run():
            done.add(step.table)
            bar.update(task, advance=1, description=step.table)
    over = f"by run over {', '.join(distribution.nodes)}"
    before = f"{distribution.tables - len(done)} of them" if done else "all of them"
    print(
        f"{distribution.database}: {distribution.tables} tables are distributed {over}; "
        f"{before} were distributed already"
    )
