"""``ampmon db``: its sub-commands, each in its own module, loaded when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from uuid import UUID

from ampmon.config import data_directory
from ampmon_server.cli.limits import amount
from ampmon_server.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    _add(commands, "upgrade", "upgrade the schema and the aggregates to this version")
    verify = _add(commands, "verify", "check the stored data, and say how to repair it")
    verify.add_argument("--run", type=UUID, metavar="ID", help="check only this run")
    verify.add_argument(
        "--repair", action="store_true", help="rebuild cells and totals from the rows that are left"
    )
    prune = _add(commands, "prune", "show what can be removed from old runs, or remove it")
    add_keeping(prune)
    prune.add_argument("--yes", action="store_true", help="remove it, and free the space")
    prune.add_argument(
        "--rewrite", action="store_true", help="rewrite an SQLite file, while no server uses it"
    )
    prune.add_argument(
        "--at-once",
        action="store_true",
        help="finish in half the time, without pauses in which servers can write",
    )
    backup = _add(commands, "backup", "copy an SQLite database to a file, also while servers write")
    backup.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="the file to write (named by the time, here)",
    )
    backup.add_argument("--force", action="store_true", help="overwrite an existing file")
    restore = _add(
        commands, "restore", "restore a copy of an SQLite database, while no server uses it"
    )
    restore.add_argument(
        "file", type=Path, metavar="FILE", help="a file written by `ampmon db backup`"
    )
    distribute = _add(commands, "distribute", "spread runs over the nodes of a Citus cluster")
    distribute.add_argument(
        "--dry-run", action="store_true", help="print the SQL without running it"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run one sub-command. Return its exit code."""
    if arguments.what == "prune":
        from ampmon_server.cli.db import prune

        return prune.run(arguments)
    if arguments.what in {"backup", "restore"}:
        from ampmon_server.cli.db import copies

        return copies.run(arguments)
    if arguments.what == "verify":
        from ampmon_server.cli.db import verify

        return verify.run(arguments)
    if arguments.what == "distribute":
        from ampmon_server.cli.db import distribute

        return distribute.run(arguments)
    from ampmon_server.cli.db import upgrade

    return upgrade.run(settings_of(arguments))


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings of the database that a sub-command works on."""
    directory = arguments.data_dir or data_directory()
    return Settings(
        data_directory=directory.expanduser().absolute(), database_url=arguments.database_url
    )


def add_database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, help="the server's data directory (AMPMON_DIR)")
    parser.add_argument(
        "--database-url", help="SQLAlchemy URL of a database elsewhere: postgresql+psycopg://..."
    )


def add_keeping(parser: argparse.ArgumentParser) -> None:
    """Add the options for how long old runs keep their rows and samples."""
    for name, what in (("rows", "updates and logged values"), ("samples", "sampled gradients")):
        parser.add_argument(
            f"--keep-{name}-days",
            type=amount,
            metavar="DAYS",
            help=f"days to keep a run's {what} after its last record (forever)",
        )


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=does, description=does)
    add_database(parser)
    return parser
