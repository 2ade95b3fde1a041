"""Parses and runs all commands except `run`. Loads the server only for commands that need it."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ampmon.system.installing import install
from ampmon_server import demo
from ampmon_server.cli import (
    alerts,
    bundle,
    check,
    db,
    doctor,
    export,
    health,
    importing,
    limits,
    proxies,
    report,
    sync,
    thresholds,
    token,
)
from ampmon_server.cli.exits import CANNOT, reason
from ampmon_server.cli.terminal import changing, completing, listing, showing, tailing, welcome


_OURS = ("ampmon", "ampmon_server")


def main(argv: Sequence[str]) -> int:
    """Run one command. Return its exit code."""
    if not argv:
        print(welcome.WELCOME, end="")
        return 0
    _prepare_stdout()
    arguments = parser().parse_args(argv)
    try:
        code = int(_run(arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        _discard_stdout()
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"ampmon {arguments.command}: {reason(error)}", file=sys.stderr)
        _discard_stdout()
        return CANNOT
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            raise
        needed = f"This needs ampmon's server: {install('server')}"
        print(f"{needed} ({error.name} is missing)", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _prepare_stdout() -> None:
    """Let commands print any text, also if stdout is closed or its encoding lacks a character."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # of a file that was replaced by a pipe
            sys.stdout.reconfigure(errors="backslashreplace")


def _discard_stdout() -> None:
    """Let Python write the rest of its buffer nowhere when it ends, because another failure would be reported there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_RUN: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "alerts": alerts.run,
    "archive": changing.run,
    "bundle": bundle.run,
    "check": check.run,
    "completion": completing.run,
    "db": db.run,
    "demo": demo.main,
    "delete": changing.run,
    "doctor": doctor.run,
    "export": export.run,
    "health": health.run,
    "import": importing.run,
    "rename": changing.run,
    "report": report.run,
    "runs": listing.run,
    "show": showing.run,
    "sync": sync.run,
    "tag": changing.run,
    "tail": tailing.run,
    "token": token.run,
}
"""Commands that load their own dependencies."""


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "serve":
        from ampmon_server.cli import serve

        return serve.run(arguments)
    return _RUN[arguments.command](arguments)


def parser() -> argparse.ArgumentParser:
    """The parser of everything after `ampmon`."""
    typed = argparse.ArgumentParser(prog="ampmon", description="Watch mixed-precision training.")
    typed.add_argument("--version", action="version", version=welcome.version())
    commands = typed.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="run an unchanged training script, and watch it")
    listing.add_arguments(commands.add_parser("runs", help="list runs"))
    showing.add_arguments(
        commands.add_parser("show", help="show a run: its numbers, and what to change")
    )
    tailing.add_arguments(commands.add_parser("tail", help="follow a run live"))
    changing.add_rename(commands.add_parser("rename", help="rename a run"))
    changing.add_tag(commands.add_parser("tag", help="add tags to a run, or remove some"))
    changing.add_archive(
        commands.add_parser("archive", help="archive runs: hide them from the list")
    )
    changing.add_delete(commands.add_parser("delete", help="delete runs for good"))
    _add_serving(commands.add_parser("serve", help="start the server and its page"))
    token.add_arguments(commands.add_parser("token", help="manage access tokens"))
    alerts.add_arguments(commands.add_parser("alerts", help="send a test alert"))
    doctor.add_arguments(
        commands.add_parser("doctor", help="diagnose a run, or explain an error message")
    )
    check.add_arguments(commands.add_parser("check", help="check a model before training in fp16"))
    health.add_arguments(commands.add_parser("health", help="check a server's health (exit code)"))
    report.add_arguments(
        commands.add_parser("report", help="write a run as one file that opens offline")
    )
    export.add_arguments(
        commands.add_parser(
            "export", help="write a run's rows as CSV, JSON lines, Parquet or Arrow"
        )
    )
    importing.add_arguments(
        commands.add_parser(
            "import", help="import exports, text logs and TensorBoard files as runs"
        )
    )
    bundle.add_arguments(
        commands.add_parser("bundle", help="pack a run into one file for a bug report")
    )
    sync.add_arguments(
        commands.add_parser("sync", help="send the unsent records of a data directory")
    )
    db.add_arguments(commands.add_parser("db", help="manage the database"))
    demo.add_arguments(commands.add_parser("demo", help="train a small model and watch it"))
    completing.add_arguments(
        commands.add_parser("completion", help="print a script that completes commands in a shell")
    )
    return typed


def commands_of(typed: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each command, by name."""
    (commands,) = (each for each in typed._actions if isinstance(each, argparse._SubParsersAction))
    return commands.choices


def _add_serving(serve: argparse.ArgumentParser) -> None:
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
    proxies.add_arguments(serve)
    db.add_keeping(serve)
    thresholds.add_threshold(serve)
    alerts.add_file(serve)
    limits.add_limits(serve)
    _add_other_tools(serve)
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


def _add_other_tools(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--run-metrics",
        type=limits.count,
        default=0,
        metavar="N",
        help="show up to N running runs on /metrics, each with its values (none)",
    )
    serve.add_argument(
        "--forward",
        action="append",
        default=[],
        metavar="KIND:PLACE",
        help="copy runs to another tracker as they are recorded: tensorboard:DIR or mlflow:URI (repeatable)",
    )
