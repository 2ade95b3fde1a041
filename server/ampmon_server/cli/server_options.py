"""Options that name a server or database, the commands that manage one, and how a command is added to a parser."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

from ampmon_server.settings import Settings


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SCOPES = ("ingest", "read", "admin")
_WHERE_RUNS_REPORT = "AMPMON_URL, else the one that runs on the data directory"
_THE_ONE_HERE = "the one that runs on the data directory, else AMPMON_URL"
NEVER = "never"


def add_command(
    commands: Commands, name: str, does: str, function: str, description: str | None = None
) -> argparse.ArgumentParser:
    """Add a command that a function of this package runs, such as `admin:link`."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=does, description=description)
    command.set_defaults(function=f"ampmon_server.cli.{function}")
    return command


def _add_below(commands: Commands, name: str, does: str, function: str) -> argparse.ArgumentParser:
    """Add a command below another one, whose help says the same as the list of commands."""
    return add_command(commands, name, does, function, does)


def _below(parser: argparse.ArgumentParser) -> Commands:
    return parser.add_subparsers(dest="what", required=True, metavar="WHAT")


def add_server(command: argparse.ArgumentParser, unless_named: str = _WHERE_RUNS_REPORT) -> None:
    """Add the options that name the server. ``unless_named`` says in words which one is used without ``--url``."""
    command.add_argument("--url", help=f"the server to ask ({unless_named})")
    command.add_argument("--data-dir", type=Path, help="the server's data directory (AMPMON_DIR)")
    command.add_argument(
        "--token-file", type=Path, help="file with a token (the data directory's, or AMPMON_TOKEN)"
    )


def add_serve(commands: Commands) -> None:
    serve = add_command(commands, "serve", "start the server and its page", "serve:run")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    serve.add_argument(
        "--port", type=int, default=8267, help="port to listen on (%(default)s); 0 for any"
    )
    serve.add_argument("--data-dir", type=Path, help="the server's data directory (AMPMON_DIR)")
    serve.add_argument("--database-url", help="SQLAlchemy URL of a database elsewhere")
    serve.add_argument(
        "--token-file", type=Path, help="file with a token that several servers share"
    )
    serve.add_argument(
        "--workers",
        type=int,
        default=1,
        help="server processes (%(default)s); more need PostgreSQL",
    )
    serve.add_argument(
        "--drain",
        type=amount,
        default=0.0,
        metavar="SECONDS",
        help="time to keep serving after a stop signal, while /readyz reports the stop (%(default)g)",
    )
    _add_proxies(serve)
    _add_keeping(serve)
    _add_repeatable(
        serve,
        "--threshold",
        "NAME=VALUE",
        f"override a finding's threshold, such as skip_rate.warning=0.02, or skip_rate.notice={NEVER}",
    )
    _add_alerts_file(serve)
    _add_limits(serve)
    _add_repeatable(
        serve,
        "--forward",
        "KIND:PLACE",
        "copy runs to another tracker as they are recorded: tensorboard:DIR or mlflow:URI",
    )
    _add_operation(serve)


def _add_operation(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--no-judging",
        action="store_true",
        help="check runs for findings only on request, not as records arrive",
    )
    serve.add_argument(
        "--stop-when-idle",
        type=float,
        metavar="MINUTES",
        help="stop after this long without a request from a training or a page (never)",
    )
    serve.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="format of the log lines (%(default)s)",
    )
    serve.add_argument("--open", action="store_true", help="open the page in a browser")


def _add_proxies(serve: argparse.ArgumentParser) -> None:
    """Options for TLS, load balancers, proxies and frames."""
    serve.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="the server's own certificate, as PEM"
    )
    serve.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, as PEM")
    _add_repeatable(
        serve,
        "--behind-proxy",
        "ADDRESS",
        "address or network of a proxy that terminates TLS; other machines may not connect",
    )
    _add_people(serve)
    _add_repeatable(
        serve,
        "--allow-host",
        "NAME",
        "another host name to accept in requests, such as the proxy's",
    )
    serve.add_argument(
        "--base-path",
        default="",
        metavar="PATH",
        help="path under which a proxy serves ampmon, such as /user/me/ampmon",
    )
    _add_repeatable(
        serve,
        "--frame-ancestors",
        "ORIGIN",
        "origin whose pages may show ampmon in a frame, such as https://hub.example",
    )
    _add_repeatable(
        serve,
        "--allow-origin",
        "ORIGIN",
        "site whose scripts may call the API with a token, such as https://hub.example",
    )


def _add_people(serve: argparse.ArgumentParser) -> None:
    """Options for users that a proxy has signed in: how it names them, and what they may do."""
    serve.add_argument(
        "--trust-user-header",
        metavar="HEADER",
        help="header in which the proxy names the signed-in user, such as X-Forwarded-User (none)",
    )
    serve.add_argument(
        "--user-scope",
        action="append",
        choices=SCOPES,
        help="scope of those users (repeatable; read and ingest)",
    )
    serve.add_argument(
        "--user-project",
        action="append",
        metavar="PROJECT",
        help="project that those users see and write (repeatable; all)",
    )


def _add_keeping(parser: argparse.ArgumentParser) -> None:
    """Add the options for how long old runs keep their rows and samples."""
    for name, what in (("rows", "updates and logged values"), ("samples", "sampled gradients")):
        parser.add_argument(
            f"--keep-{name}-days",
            type=amount,
            metavar="DAYS",
            help=f"days to keep a run's {what} after its last record (forever)",
        )


def _add_alerts_file(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "--alerts",
        type=Path,
        required=required,
        metavar="FILE",
        help="a TOML file that lists the targets of alerts",
    )
    parser.add_argument("--public-url", help="public address of the page, for the links in alerts")


def _add_limits(serve: argparse.ArgumentParser) -> None:
    usual = Settings()
    serve.add_argument(
        "--requests-per-second",
        type=count,
        default=usual.requests_per_s,
        metavar="N",
        help="maximum requests per second of one token to a server process (%(default)g)",
    )
    serve.add_argument(
        "--streams-per-token",
        type=count,
        default=usual.streams_per_token_max,
        metavar="N",
        help="maximum live pages of one token; twice as many over all tokens (%(default)d)",
    )
    serve.add_argument(
        "--run-metrics",
        type=count,
        default=0,
        metavar="N",
        help="show up to N running runs on /metrics, each with its values (none)",
    )


def _add_repeatable(serve: argparse.ArgumentParser, flag: str, value: str, does: str) -> None:
    serve.add_argument(
        flag, action="append", default=[], metavar=value, help=f"{does} (repeatable)"
    )


def count(typed: str) -> int:
    """Parse a whole number of at least 1. Raises ValueError."""
    number = int(typed)
    if number < 1:
        raise ValueError
    return number


def amount(typed: str) -> float:
    """Parse a finite number of at least 0. Raises ArgumentTypeError."""
    try:
        number = float(typed)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{typed!r} is not a number of at least 0")
    return number


def add_token(token: argparse.ArgumentParser) -> None:
    commands = _below(token)
    link = _add_below(commands, "link", "print a new one-time sign-in link", "admin:link")
    add_server(link, _THE_ONE_HERE)
    link.add_argument("--public-url", help="public address of the page (the server's address)")
    new = _add_below(commands, "new", "create a token, and print it once", "admin:new")
    add_server(new, _THE_ONE_HERE)
    new.add_argument("name", metavar="NAME", help="name of the token")
    new.add_argument(
        "--scope",
        action="append",
        help="scope: ingest, read or admin (repeatable; ingest and read)",
    )
    new.add_argument(
        "--project", action="append", help="project that the token may access (repeatable; all)"
    )
    new.add_argument("--owner", help="owner of the runs started with the token (your login name)")
    new.add_argument("--expires", help="when the token expires: 12h, 90d, 4w (never)")
    listed = _add_below(commands, "list", "list tokens (secrets hidden)", "admin:list_tokens")
    add_server(listed, _THE_ONE_HERE)
    revoke = _add_below(commands, "revoke", "revoke a token", "admin:revoke")
    add_server(revoke, _THE_ONE_HERE)
    revoke.add_argument(
        "name", metavar="ID_OR_NAME", help="id or name, as `ampmon token list` shows it"
    )


def add_alerts(alerts: argparse.ArgumentParser) -> None:
    commands = _below(alerts)
    does = "send a test message to each target, and print the results"
    test = _add_below(commands, "test", does, "admin:send_tests")
    test.add_argument("target", nargs="?", metavar="TARGET", help="send only to this target (all)")
    _add_alerts_file(test, required=True)
    does = "list the open alerts, and the state of the targets"
    add_server(_add_below(commands, "list", does, "admin:list_alerts"), _THE_ONE_HERE)


def add_health(commands: Commands) -> None:
    health = add_command(commands, "health", "check a server's health (exit code)", "admin:health")
    add_server(health, _THE_ONE_HERE)
    health.add_argument(
        "--alive",
        action="store_true",
        help="check only that the server answers, not its database",
    )


def add_sync(commands: Commands) -> None:
    sync = add_command(commands, "sync", "send the unsent records of a data directory", "sync:run")
    sync.add_argument(
        "directory",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="a data directory or a copy of one, or one spool in it (AMPMON_DIR)",
    )
    sync.add_argument("--url", help="the server to send to (default: each run's own)")
    sync.add_argument(
        "--token-file", type=Path, help="file with the token (AMPMON_TOKEN, else the run's own)"
    )


def add_db(db: argparse.ArgumentParser) -> None:
    commands = _below(db)
    does = "upgrade the schema and the aggregates to this version"
    _add_database(commands, "upgrade", does, "database:upgrade")
    does = "check the stored data, and say how to repair it"
    verify = _add_database(commands, "verify", does, "database:verify")
    verify.add_argument("--run", type=UUID, metavar="ID", help="check only this run")
    verify.add_argument(
        "--repair", action="store_true", help="rebuild cells and totals from the rows that are left"
    )
    does = "show what can be removed from old runs, or remove it"
    prune = _add_database(commands, "prune", does, "pruning:prune")
    _add_keeping(prune)
    prune.add_argument("--yes", action="store_true", help="remove it, and free the space")
    prune.add_argument(
        "--rewrite", action="store_true", help="rewrite an SQLite file, while no server uses it"
    )
    prune.add_argument(
        "--at-once",
        action="store_true",
        help="finish in half the time, without pauses in which servers can write",
    )
    does = "copy an SQLite database to a file, also while servers write"
    backup = _add_database(commands, "backup", does, "database:back_up")
    backup.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="the file to write (named by the time, here)",
    )
    backup.add_argument("--force", action="store_true", help="overwrite an existing file")
    does = "restore a copy of an SQLite database, while no server uses it"
    restore = _add_database(commands, "restore", does, "database:restore")
    restore.add_argument(
        "file", type=Path, metavar="FILE", help="a file written by `ampmon db backup`"
    )
    does = "spread runs over the nodes of a Citus cluster"
    distribute = _add_database(commands, "distribute", does, "database:distribute")
    distribute.add_argument(
        "--dry-run", action="store_true", help="print the SQL without running it"
    )


def _add_database(
    commands: Commands, name: str, does: str, function: str
) -> argparse.ArgumentParser:
    command = _add_below(commands, name, does, function)
    command.add_argument("--data-dir", type=Path, help="the server's data directory (AMPMON_DIR)")
    command.add_argument(
        "--database-url", help="SQLAlchemy URL of a database elsewhere: postgresql+psycopg://..."
    )
    return command
