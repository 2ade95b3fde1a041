"""How commands and their options are added to a parser; the options that name a server, and those of `ampmon serve`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, TypeAlias, get_args

from ampmon_server.settings import DEFAULT_HOST, DEFAULT_PORT, LogFormat, Settings


Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SCOPES = ("ingest", "read", "admin")
NEVER = "never"
_WHERE_RUNS_REPORT = "AMPMON_URL, else the one that runs on the data directory"


def add_command(
    commands: Commands, name: str, does: str, function: str, description: str | None = None
) -> argparse.ArgumentParser:
    """Add a command that a function of this package runs, such as `admin:link`."""
    command = commands.add_parser(name, help=does, description=description or does)
    command.set_defaults(function=f"ampmon_server.cli.{function}", parser=command)
    return command


def commands_below(commands: Commands, name: str, does: str) -> Commands:
    """Add a command that has commands of its own, and return them."""
    command = commands.add_parser(name, help=does, description=does)
    return command.add_subparsers(dest="what", required=True, metavar="COMMAND")


def takes(into: argparse._ActionsContainer, usage: str, says: str, **more: Any) -> None:
    """Add an argument by its names and metavar, such as ``-o --output FILE``, and its help."""
    names = usage.split()
    if len(names) > 1 and not names[-1].startswith("-"):
        more["metavar"] = names.pop()
    into.add_argument(*names, help=says, **more)


def may(into: argparse._ActionsContainer, flag: str, says: str) -> None:
    """Add an option without a value."""
    into.add_argument(flag, help=says, action="store_true")


def takes_each(into: argparse._ActionsContainer, usage: str, says: str) -> None:
    """Add an option that may be given several times. Its values are a list."""
    takes(into, usage, f"{says} (repeatable)", action="append", default=[])


def takes_data_dir(command: argparse.ArgumentParser) -> None:
    takes(command, "--data-dir", "the server's data directory (AMPMON_DIR)", type=Path)


def takes_server(command: argparse.ArgumentParser, unless_named: str = _WHERE_RUNS_REPORT) -> None:
    """Add the options that name the server. ``unless_named`` says in words which one is used without ``--url``."""
    takes(command, "--url", f"the server to ask ({unless_named})")
    takes_data_dir(command)
    file = "file with a token (the data directory's, or AMPMON_TOKEN)"
    takes(command, "--token-file", file, type=Path)


def takes_alerts_file(command: argparse.ArgumentParser, **more: Any) -> None:
    says = "a TOML file that lists the targets of alerts"
    takes(command, "--alerts FILE", says, type=Path, **more)
    takes(command, "--public-url", "public address of the page, for the links in alerts")


def takes_keeping(command: argparse.ArgumentParser) -> None:
    """Add the options for how long old runs keep their rows and samples."""
    for name, what in (("rows", "updates and logged values"), ("samples", "sampled gradients")):
        says = f"days to keep a run's {what} after its last record (forever)"
        takes(command, f"--keep-{name}-days DAYS", says, type=amount)


def add_serve(commands: Commands) -> None:
    serve = add_command(commands, "serve", "start the server and its page", "serve:run")
    takes(serve, "--host", "address to listen on (%(default)s)", default=DEFAULT_HOST)
    says = "port to listen on (%(default)s); 0 for any"
    takes(serve, "--port", says, type=port, default=DEFAULT_PORT)
    takes_data_dir(serve)
    takes(serve, "--database-url", "SQLAlchemy URL of a database elsewhere")
    takes(serve, "--token-file", "file with a token that several servers share", type=Path)
    says = "server processes (%(default)s); more need PostgreSQL"
    takes(serve, "--workers", says, type=count, default=1)
    says = "time to keep serving after a stop signal, while /readyz reports the stop (%(default)g)"
    takes(serve, "--drain SECONDS", says, type=amount, default=0.0)
    _add_proxies(serve)
    takes_keeping(serve)
    says = f"override a finding's threshold, such as skip_rate.warning=0.02, or skip_rate.notice={NEVER}"
    takes_each(serve, "--threshold NAME=VALUE", says)
    takes_alerts_file(serve)
    _add_limits(serve)
    says = "copy runs to another tracker as they are recorded: tensorboard:DIR or mlflow:URI"
    takes_each(serve, "--forward KIND:PLACE", says)
    may(serve, "--no-judging", "check runs for findings only on request, not as records arrive")
    says = "stop after this long without a request from a training or a page (never)"
    takes(serve, "--stop-when-idle MINUTES", says, type=float)
    says = "format of the log lines (%(default)s)"
    takes(serve, "--log-format", says, choices=get_args(LogFormat), default="text")
    may(serve, "--open", "open the page in a browser")


def _add_proxies(serve: argparse.ArgumentParser) -> None:
    """Options for TLS, load balancers, proxies and frames, and for users that a proxy has signed in."""
    takes(serve, "--tls-cert FILE", "the server's own certificate, as PEM", type=Path)
    takes(serve, "--tls-key FILE", "its key, as PEM", type=Path)
    says = "address or network of a proxy that terminates TLS; other machines may not connect"
    takes_each(serve, "--behind-proxy ADDRESS", says)
    says = "header in which the proxy names the signed-in user, such as X-Forwarded-User (none)"
    takes(serve, "--trust-user-header HEADER", says)
    says = "scope of those users (repeatable; read and ingest)"
    takes(serve, "--user-scope", says, action="append", choices=SCOPES)
    says = "project that those users see and write (repeatable; all)"
    takes(serve, "--user-project PROJECT", says, action="append")
    says = "another host name to accept in requests, such as the proxy's"
    takes_each(serve, "--allow-host NAME", says)
    says = "path under which a proxy serves ampmon, such as /user/me/ampmon"
    takes(serve, "--base-path PATH", says, default="")
    says = "origin whose pages may show ampmon in a frame, such as https://hub.example"
    takes_each(serve, "--frame-ancestors ORIGIN", says)
    says = "site whose scripts may call the API with a token, such as https://hub.example"
    takes_each(serve, "--allow-origin ORIGIN", says)


def _add_limits(serve: argparse.ArgumentParser) -> None:
    usual = Settings(data_directory=Path())  # the user may have no home directory
    says = "maximum requests per second of one token to a server process (%(default)g)"
    takes(serve, "--requests-per-second N", says, type=count, default=usual.requests_per_s)
    says = "maximum live pages of one token; twice as many over all tokens (%(default)d)"
    takes(serve, "--streams-per-token N", says, type=count, default=usual.streams_per_token_max)
    says = "show up to N running runs on /metrics, each with its values (none)"
    takes(serve, "--run-metrics N", says, type=count, default=0)


def count(typed: str) -> int:
    """Parse a whole number of at least 1. Raises ArgumentTypeError."""
    if not typed.isdecimal() or int(typed) < 1:
        raise argparse.ArgumentTypeError(f"{typed!r} is not a whole number of at least 1")
    return int(typed)


def port(typed: str) -> int:
    """Parse a port. Raises ArgumentTypeError."""
    if not typed.isdecimal() or int(typed) >= 2**16:
        raise argparse.ArgumentTypeError(f"{typed!r} is not a port, 0 to 65535")
    return int(typed)


def amount(typed: str) -> float:
    """Parse a finite number of at least 0. Raises ArgumentTypeError."""
    try:
        number = float(typed)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{typed!r} is not a number of at least 0")
    return number
