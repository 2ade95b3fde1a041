"""The commands after `ampmon`, their options, and the function that runs each. Loads none of them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import get_args
from uuid import UUID

from ampmon import __version__
from ampmon.wire import Severity
from ampmon_server.cli.server_options import (
    SCOPES,
    Commands,
    add_command,
    add_serve,
    amount,
    commands_below,
    count,
    may,
    port,
    takes,
    takes_alerts_file,
    takes_data_dir,
    takes_keeping,
    takes_server,
)
from ampmon_server.exchange.logs import FRAMEWORKS


# Spelled out: the modules that define these load much that most commands do not need.
FORMATS = ("csv", "jsonl", "parquet", "arrow")
POLICIES = ("torch", "fixed", "megatron", "deepspeed", "fairseq")
SHELLS = ("bash", "zsh", "fish")
STATUSES = ("running", "finished", "crashed", "silent")
TABLES = ("updates", "skips", "events", "samples", "scalars")

_THE_ONE_HERE = "the one that runs on the data directory, else AMPMON_URL"
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
    does = "run an unchanged training script, and watch it"
    commands.add_parser("run", help=does, description=does)
    _add_looking(commands)
    _add_changing(commands)
    add_serve(commands)
    _add_token(commands_below(commands, "token", "manage access tokens"))
    _add_alerts(commands_below(commands, "alerts", "list open alerts, or send a test alert"))
    _add_doctor(commands)
    _add_checks(commands)
    _add_files(commands)
    _add_db(commands_below(commands, "db", "manage the database"))
    _add_demo(commands)
    does = "print a script that completes commands in a shell"
    completion = add_command(commands, "completion", does, "commands:completion")
    takes(completion, "shell", "the shell to complete commands in", choices=SHELLS)
    return typed


def commands_of(typed: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each command, by name."""
    (commands,) = (each for each in typed._actions if isinstance(each, argparse._SubParsersAction))
    return commands.choices


def _takes_run(command: argparse.ArgumentParser) -> None:
    takes(command, "run RUN", f"{_RUN} (the newest run)", nargs="?", default="latest")


def _takes_output(command: argparse.ArgumentParser, unless_named: str) -> None:
    takes(command, "-o --output FILE", unless_named, type=Path)
    may(command, "--force", "overwrite an existing file")
    takes_server(command)


def _add_looking(commands: Commands) -> None:
    runs = add_command(commands, "runs", "list runs", "terminal.showing:runs")
    takes(runs, "search WORD", "a part of the name, project, owner or a tag", nargs="*")
    takes(runs, "--project", "only of this project")
    takes(runs, "--status", "only in this state", choices=STATUSES)
    takes(runs, "--tag", "only with this tag")
    may(runs, "--archived", "list archived runs instead")
    says = "list at most N runs, up to 1000 (%(default)s)"
    takes(runs, "--limit N", says, type=int, default=20)
    may(runs, "--json", "print the server's answer as JSON")
    takes_server(runs)

    does = "show a run: its numbers, and what to change"
    show = add_command(commands, "show", does, "terminal.showing:show")
    _takes_run(show)
    may(show, "--json", "print the server's answers as JSON")
    takes_server(show)

    tail = add_command(commands, "tail", "follow a run live", "terminal.tailing:run")
    _takes_run(tail)
    says = "print plain lines, for logs (the default if the output is not a terminal)"
    may(tail, "--follow", says)
    says = "seconds between two plain lines while nothing happens (%(default)s)"
    takes(tail, "--every SECONDS", says, type=amount, default=10.0)
    takes_server(tail)


def _add_changing(commands: Commands) -> None:
    rename = add_command(commands, "rename", "rename a run", "terminal.changing:rename")
    takes(rename, "run RUN", _RUN)
    takes(rename, "name NAME", "the new name")
    takes_server(rename)

    tag = add_command(commands, "tag", "add tags to a run, or remove some", "terminal.changing:tag")
    takes(tag, "run RUN", _RUN)
    takes(tag, "tags TAG", "tags to add (print those it has)", nargs="*")
    takes(tag, "--remove TAG", "tags to remove", nargs="+", default=())
    takes_server(tag)

    does = "archive runs: hide them from the list"
    archive = add_command(commands, "archive", does, "terminal.changing:archive")
    takes(archive, "runs RUN", _RUN, nargs="+")
    may(archive, "--undo", "restore archived runs")
    takes_server(archive)

    delete = add_command(commands, "delete", "delete runs for good", "terminal.changing:delete")
    takes(delete, "runs RUN", _RUN, nargs="+")
    may(delete, "--yes", "delete without asking")
    takes_server(delete)


def _add_token(commands: Commands) -> None:
    link = add_command(commands, "link", "print a new one-time sign-in link", "admin:link")
    takes_server(link, _THE_ONE_HERE)
    takes(link, "--public-url", "public address of the page (the server's address)")

    new = add_command(commands, "new", "create a token, and print it once", "admin:new")
    takes_server(new, _THE_ONE_HERE)
    takes(new, "name NAME", "name of the token")
    says = "what the token may do (repeatable; ingest and read)"
    takes(new, "--scope", says, action="append", choices=SCOPES)
    says = "project that the token may access (repeatable; all)"
    takes(new, "--project", says, action="append")
    takes(new, "--owner", "owner of the runs started with the token (your login name)")
    takes(new, "--expires", "when the token expires: 12h, 90d, 4w (never)")

    listed = add_command(commands, "list", "list tokens (secrets hidden)", "admin:list_tokens")
    takes_server(listed, _THE_ONE_HERE)

    revoke = add_command(commands, "revoke", "revoke a token", "admin:revoke")
    takes_server(revoke, _THE_ONE_HERE)
    takes(revoke, "name ID_OR_NAME", "id or name, as `ampmon token list` shows it")


def _add_alerts(commands: Commands) -> None:
    does = "send a test message to each target, and print the results"
    test = add_command(commands, "test", does, "admin:send_tests")
    takes(test, "target TARGET", "send only to this target (all)", nargs="?")
    takes_alerts_file(test, required=True)
    does = "list the open alerts, and the state of the targets"
    takes_server(add_command(commands, "list", does, "admin:list_alerts"), _THE_ONE_HERE)


def _add_doctor(commands: Commands) -> None:
    does = "diagnose a run, or explain an error message"
    doctor = add_command(commands, "doctor", does, "doctor:run", _DOCTOR)
    says = (
        "a run, by its id, the beginning of it, or its name (the newest run); or an error message, in quotes; "
        "or - to read the messages in the last MB of standard input"
    )
    takes(doctor, "run RUN|MESSAGE", says, nargs="?", default="latest")
    says = "diagnose the text log of a run that ampmon did not record"
    takes(doctor, "--log FILE", says, type=Path)
    says = "the framework that wrote the log (the first whose lines it contains)"
    takes(doctor, "--log-of", says, choices=FRAMEWORKS)
    may(doctor, "--json", "print the answer as JSON")
    says = "the lowest severity with an exit code other than 0 (%(default)s)"
    takes(doctor, "--fail-on", says, choices=get_args(Severity), default="warning")
    replay = doctor.add_argument_group("replay the run under another policy")
    may(replay, "--simulate", "replay the run's updates, and recommend settings")
    says = "policy to replay (torch; other settings default to the run's)"
    takes(replay, "--policy", says, choices=POLICIES)
    takes(replay, "--init-scale SCALE", "initial scale", type=float)
    takes(replay, "--growth-factor FACTOR", "factor by which the scale grows", type=float)
    takes(replay, "--backoff-factor FACTOR", "factor by which the scale falls", type=float)
    takes(replay, "--growth-interval N", "grow after N updates without a skip", type=int)
    takes_server(doctor)


def _add_checks(commands: Commands) -> None:
    does = "check a model before training in fp16"
    check = add_command(commands, "check", does, "check:run", _CHECK)
    says = "a function without arguments that returns (model, batch, loss_fn), as ampmon.preflight takes them"
    takes(check, "target SCRIPT.py:FUNCTION", says)
    says = "the loss scale to try first (%(default)g)"
    takes(check, "--init-scale SCALE", says, type=float, default=65536.0)
    may(check, "--json", "print the result as JSON")

    health = add_command(commands, "health", "check a server's health (exit code)", "admin:health")
    takes_server(health, _THE_ONE_HERE)
    may(health, "--alive", "check only that the server answers, not its database")


def _add_files(commands: Commands) -> None:
    does = "write a run as one file that opens offline"
    report = add_command(commands, "report", does, "files:report")
    _takes_run(report)
    _takes_output(report, "the file to write (the run's name, here)")

    does = "write a run's rows as CSV, JSON lines, Parquet or Arrow"
    export = add_command(commands, "export", does, "files:export")
    _takes_run(export)
    takes(export, "--what", "the rows (%(default)s)", choices=TABLES, default="updates")
    takes(export, "--format", "the format (FILE's suffix, else jsonl)", choices=FORMATS)
    _takes_output(export, "the file to write; - for stdout")

    does = "import exports, text logs and TensorBoard files as runs"
    imported = add_command(commands, "import", does, "files:import_")
    says = "the files of one run: exports, a text log, event files or their folder"
    takes(imported, "files FILE", says, nargs="+", type=Path)
    takes(imported, "--name", "the new run's name (the file's)")
    takes(imported, "--project", "its project (%(default)s)", default="imported")
    takes(imported, "--log-of", "the framework that wrote a text log", choices=FRAMEWORKS)
    takes_server(imported)

    does = "pack a run into one file for a bug report"
    bundle = add_command(commands, "bundle", does, "files:bundle")
    _takes_run(bundle)
    _takes_output(bundle, "the file to write (the run's name, here)")

    sync = add_command(commands, "sync", "send the unsent records of a data directory", "sync:run")
    says = "a data directory or a copy of one, or one spool in it (AMPMON_DIR)"
    takes(sync, "directory DIR", says, nargs="?", type=Path)
    takes(sync, "--url", "the server to send to (default: each run's own)")
    says = "file with the token (AMPMON_TOKEN, else the run's own)"
    takes(sync, "--token-file", says, type=Path)


def _add_db(commands: Commands) -> None:
    does = "upgrade the schema and the aggregates to this version"
    _add_database(commands, "upgrade", does, "database:upgrade")
    does = "check the stored data, and say how to repair it"
    verify = _add_database(commands, "verify", does, "database:verify")
    takes(verify, "--run ID", "check only this run", type=UUID)
    may(verify, "--repair", "rebuild aggregates and totals from the rows that are left")
    does = "show what can be removed from old runs, or remove it"
    prune = _add_database(commands, "prune", does, "pruning:prune")
    takes_keeping(prune)
    may(prune, "--yes", "remove it, and free the space")
    says = "finish in half the time, without pauses in which servers can write"
    may(prune, "--at-once", says)
    does = "copy an SQLite database to a file, also while servers write"
    backup = _add_database(commands, "backup", does, "database:back_up")
    says = "the file to write (named by the time, here)"
    takes(backup, "file FILE", says, nargs="?", type=Path)
    may(backup, "--force", "overwrite an existing file")
    does = "restore a copy of an SQLite database, while no server uses it"
    restore = _add_database(commands, "restore", does, "database:restore")
    takes(restore, "file FILE", "a file written by `ampmon db backup`", type=Path)
    does = "spread runs over the nodes of a Citus cluster"
    distribute = _add_database(commands, "distribute", does, "database:distribute")
    may(distribute, "--dry-run", "print the SQL without running it")


def _add_database(
    commands: Commands, name: str, does: str, function: str
) -> argparse.ArgumentParser:
    command = add_command(commands, name, does, function)
    takes_data_dir(command)
    says = "SQLAlchemy URL of a database elsewhere: postgresql+psycopg://..."
    takes(command, "--database-url", says)
    return command


def _add_demo(commands: Commands) -> None:
    does = "train a small model and watch it"
    demo = commands.add_parser("demo", help=does, description=does)
    demo.set_defaults(function="ampmon_server.demo:main", parser=demo)
    says = "updates to train (default: as many as take about five minutes)"
    takes(demo, "--steps N", says, type=count)
    says = "port of the page (default: 8267, or a free port if that is in use)"
    takes(demo, "--port PORT", says, type=port)
    says = "directory for runs (default: AMPMON_DIR, or the user's data directory)"
    takes(demo, "--data-dir DIR", says, type=Path)
    takes(demo, "--seed N", "seed of weights and batches (default: 0)", type=int, default=0)
    says = "updates between two doublings of the scale until it overflows "
    says += "(default: so that this takes about half a minute)"
    takes(demo, "--growth-interval N", says, type=count)
    may(demo, "--no-browser", "open no browser")
    says = "keep serving the page after the training, until Ctrl-C"
    takes(demo, "--keep", says, action=argparse.BooleanOptionalAction, default=True)
