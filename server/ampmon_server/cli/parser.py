"""The commands after `ampmon`, their options, and the function that runs each. Loads none of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from ampmon import __version__
from ampmon.wire import Severity
from ampmon_server import demo
from ampmon_server.cli.server_options import (
    Commands,
    add_alerts,
    add_command,
    add_db,
    add_health,
    add_serve,
    add_server,
    add_sync,
    add_token,
)
from ampmon_server.exchange.logs import FRAMEWORKS


FORMATS = ("csv", "jsonl", "parquet", "arrow")
POLICIES = ("torch", "fixed", "megatron", "deepspeed", "fairseq")
SHELLS = ("bash", "zsh", "fish")
STATUSES = ("running", "finished", "crashed", "silent")
TABLES = ("updates", "skips", "events", "samples", "scalars")

_RUN = "its id or the beginning of it, or its name"
_CHECK = (
    "Compare a model's gradients in fp16, fp32 and bf16 on one batch, before a run: where fp16 harms them, and which "
    "loss scale or modules in fp32 cure it. It imports the script, so guard its training code with if __name__ == "
    '"__main__". It exits with 0, with 1 if you have to change something, or with 2 if it cannot check.'
)
_DOCTOR = (
    "Diagnose a run, or explain an error message. Text of five words or more is looked up in the index of error "
    "messages first, shorter text among the runs first; without a match, in the other place. Explaining a message "
    "needs no server. It exits with 20 for a warning, with 30 for a critical finding, with 2 if no entry matches a "
    "message, else with 0."
)


def parser() -> argparse.ArgumentParser:
    """The parser of everything after `ampmon`. The result's ``function`` is the one to call, as `pkgutil` names it."""
    typed = argparse.ArgumentParser(prog="ampmon", description="Watch mixed-precision training.")
    typed.add_argument("--version", action="version", version=f"ampmon {__version__}")
    commands = typed.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="run an unchanged training script, and watch it")
    _add_looking(commands)
    _add_changing(commands)
    add_serve(commands)
    add_token(commands.add_parser("token", help="manage access tokens"))
    add_alerts(commands.add_parser("alerts", help="list open alerts, or send a test alert"))
    _add_doctor(commands)
    _add_check(commands)
    add_health(commands)
    _add_files(commands)
    add_sync(commands)
    add_db(commands.add_parser("db", help="manage the database"))
    trained = commands.add_parser("demo", help="train a small model and watch it")
    trained.set_defaults(function="ampmon_server.demo:main")
    demo.add_arguments(trained)
    does = "print a script that completes commands in a shell"
    completion = add_command(commands, "completion", does, "commands:completion")
    completion.add_argument("shell", choices=SHELLS, help="the shell to complete commands in")
    for each in commands._choices_actions:
        command = commands.choices[each.dest]
        command.description = command.description or each.help
    return typed


def commands_of(typed: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each command, by name."""
    (commands,) = (each for each in typed._actions if isinstance(each, argparse._SubParsersAction))
    return commands.choices


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "run", nargs="?", default="latest", metavar="RUN", help=f"{_RUN} (the newest run)"
    )


def _add_output(command: argparse.ArgumentParser, unless_named: str) -> None:
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help=unless_named)
    command.add_argument("--force", action="store_true", help="overwrite an existing file")
    add_server(command)


def _add_looking(commands: Commands) -> None:
    runs = add_command(commands, "runs", "list runs", "terminal.showing:runs")
    runs.add_argument(
        "search", nargs="*", metavar="WORD", help="a part of the name, project, owner or a tag"
    )
    runs.add_argument("--project", help="only of this project")
    runs.add_argument("--status", choices=STATUSES, help="only in this state")
    runs.add_argument("--tag", help="only with this tag")
    runs.add_argument("--archived", action="store_true", help="list archived runs instead")
    runs.add_argument(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help="list at most N runs, up to 1000 (%(default)s)",
    )
    runs.add_argument("--json", action="store_true", help="print the server's answer as JSON")
    add_server(runs)

    does = "show a run: its numbers, and what to change"
    show = add_command(commands, "show", does, "terminal.showing:show")
    _add_run(show)
    show.add_argument("--json", action="store_true", help="print the server's answers as JSON")
    add_server(show)

    tail = add_command(commands, "tail", "follow a run live", "terminal.tailing:run")
    _add_run(tail)
    tail.add_argument(
        "--follow",
        action="store_true",
        help="print plain lines, for logs (the default if the output is not a terminal)",
    )
    tail.add_argument(
        "--every",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="seconds between two plain lines while nothing happens (%(default)s)",
    )
    add_server(tail)


def _add_changing(commands: Commands) -> None:
    rename = add_command(commands, "rename", "rename a run", "terminal.changing:rename")
    rename.add_argument("run", metavar="RUN", help=_RUN)
    rename.add_argument("name", metavar="NAME", help="the new name")
    add_server(rename)

    tag = add_command(commands, "tag", "add tags to a run, or remove some", "terminal.changing:tag")
    tag.add_argument("run", metavar="RUN", help=_RUN)
    tag.add_argument("tags", nargs="*", metavar="TAG", help="tags to add (print those it has)")
    tag.add_argument("--remove", nargs="+", default=(), metavar="TAG", help="tags to remove")
    add_server(tag)

    does = "archive runs: hide them from the list"
    archive = add_command(commands, "archive", does, "terminal.changing:archive")
    archive.add_argument("runs", nargs="+", metavar="RUN", help=_RUN)
    archive.add_argument("--undo", action="store_true", help="restore archived runs")
    add_server(archive)

    delete = add_command(commands, "delete", "delete runs for good", "terminal.changing:delete")
    delete.add_argument("runs", nargs="+", metavar="RUN", help=_RUN)
    delete.add_argument("--yes", action="store_true", help="delete without asking")
    add_server(delete)


def _add_doctor(commands: Commands) -> None:
    does = "diagnose a run, or explain an error message"
    doctor = add_command(commands, "doctor", does, "doctor:run", _DOCTOR)
    doctor.add_argument(
        "run",
        nargs="?",
        default="latest",
        metavar="RUN|MESSAGE",
        help="a run, by its id, the beginning of it, or its name (the newest run); or an error message, in quotes; "
        "or - to read the messages in the last MB of standard input",
    )
    doctor.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="diagnose the text log of a run that ampmon did not record",
    )
    doctor.add_argument(
        "--log-of",
        choices=FRAMEWORKS,
        help="the framework that wrote the log (the first whose lines it contains)",
    )
    doctor.add_argument("--json", action="store_true", help="print the answer as JSON")
    doctor.add_argument(
        "--fail-on",
        choices=get_args(Severity),
        default="warning",
        help="the lowest severity with an exit code other than 0 (%(default)s)",
    )
    _add_replay(doctor.add_argument_group("replay the run under another policy"))
    add_server(doctor)


def _add_replay(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--simulate", action="store_true", help="replay the run's updates, and recommend settings"
    )
    group.add_argument(
        "--policy",
        choices=POLICIES,
        help="policy to replay (torch; other settings default to the run's)",
    )
    group.add_argument("--init-scale", type=float, metavar="SCALE", help="initial scale")
    group.add_argument(
        "--growth-factor", type=float, metavar="FACTOR", help="factor by which the scale grows"
    )
    group.add_argument(
        "--backoff-factor", type=float, metavar="FACTOR", help="factor by which the scale falls"
    )
    group.add_argument(
        "--growth-interval", type=int, metavar="N", help="grow after N updates without a skip"
    )


def _add_check(commands: Commands) -> None:
    check = add_command(
        commands, "check", "check a model before training in fp16", "check:run", _CHECK
    )
    check.add_argument(
        "target",
        metavar="SCRIPT.py:FUNCTION",
        help="a function without arguments that returns (model, batch, loss_fn), as ampmon.preflight takes them",
    )
    check.add_argument(
        "--init-scale",
        type=float,
        default=65536.0,
        metavar="SCALE",
        help="the loss scale to try first (%(default)g)",
    )
    check.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_files(commands: Commands) -> None:
    does = "write a run as one file that opens offline"
    report = add_command(commands, "report", does, "files:report")
    _add_run(report)
    _add_output(report, "the file to write (the run's name, here)")

    does = "write a run's rows as CSV, JSON lines, Parquet or Arrow"
    export = add_command(commands, "export", does, "files:export")
    _add_run(export)
    export.add_argument("--what", choices=TABLES, default="updates", help="the rows (%(default)s)")
    export.add_argument("--format", choices=FORMATS, help="the format (FILE's suffix, else jsonl)")
    _add_output(export, "the file to write; - for stdout")

    does = "import exports, text logs and TensorBoard files as runs"
    imported = add_command(commands, "import", does, "importing:run")
    imported.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="the files of one run: exports, a text log, event files or their folder",
    )
    imported.add_argument("--name", help="the new run's name (the file's)")
    imported.add_argument("--project", default="imported", help="its project (%(default)s)")
    imported.add_argument(
        "--log-of", choices=FRAMEWORKS, help="the framework that wrote a text log"
    )
    add_server(imported)

    bundle = add_command(
        commands, "bundle", "pack a run into one file for a bug report", "files:bundle"
    )
    _add_run(bundle)
    _add_output(bundle, "the file to write (the run's name, here)")
