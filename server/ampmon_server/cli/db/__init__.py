"""``ampmon db``: its sub-commands, each in its own module, loaded when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from uuid import UUID

from ampmon.config import data_directory
from ampmon_server.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    _add(commands, "upgrade", "bring the schema and what is rolled up to this version")
    verify = _add(commands, "verify", "say what is wrong with what is stored, and what to do")
    verify.add_argument("--run", type=UUID, metavar="ID", help="this run only")
    verify.add_argument(
        "--repair", action="store_true", help="rebuild cells and totals from the rows that are left"
    )
    prune = _add(commands, "prune", "show what of old runs could go, or remove it")
    add_keeping(prune)
    prune.add_argument("--yes", action="store_true", help="remove it, and give the space back")
    prune.add_argument(
        "--rewrite", action="store_true", help="rewrite an SQLite file, while no server uses it"
    )
    prune.add_argument(
        "--at-once",
        action="store_true",
        help="in half the time: do not rest for servers to write in between",
    )
    backup = _add(commands, "backup", "copy an SQLite database to a file, also while servers write")
    backup.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="where to (one named by the time, here)"
    )
    backup.add_argument("--force", action="store_true", help="replace a file that is there")
    restore = _add(commands, "restore", "put a copy of SQLite back, while no server uses it")
    restore.add_argument("file", type=Path, metavar="FILE", help="what `ampmon db backup` made")
    distribute = _add(commands, "distribute", "spread runs over the nodes of a Citus cluster")
    distribute.add_argument("--dry-run", action="store_true", help="print the SQL, and run none")


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
    parser.add_argument("--data-dir", type=Path, help="where data lies (AMPMON_DIR)")
    parser.add_argument(
        "--database-url", help="SQLAlchemy URL of a database elsewhere: postgresql+psycopg://..."
    )


def add_keeping(parser: argparse.ArgumentParser) -> None:
    """Add the options for how long old runs keep their rows and samples."""
    for name, what in (("rows", "updates and logged values"), ("samples", "sampled gradients")):
        parser.add_argument(
            f"--keep-{name}-days",
            type=float,
            metavar="DAYS",
            help=f"how long after its last record a run keeps its {what} (for ever)",
        )


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=does, description=does)
    add_database(parser)
    return parser
