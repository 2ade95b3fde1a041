"""``ampmon rename``, ``tag``, ``archive`` and ``delete``: change runs."""

from __future__ import annotations

import argparse
import sys

from ampmon.system.plain import plain
from ampmon_server.client import ClientError, answering, choose
from ampmon_server.client.answers import Run
from ampmon_server.model.words import plural


def rename(arguments: argparse.Namespace) -> None:
    with answering.chosen(arguments) as (server, run):
        server.patch(f"/runs/{run.run_id}", {"name": arguments.name})
        print(f"renamed {_named(run)} to {arguments.name}")


def tag(arguments: argparse.Namespace) -> None:
    with answering.chosen(arguments) as (server, run):
        both = dict.fromkeys([*run.tags, *arguments.tags])
        tags = [tag for tag in both if tag not in arguments.remove]
        if tags != list(run.tags):
            server.patch(f"/runs/{run.run_id}", {"tags": tags})
        print(f"{_named(run)}: {plain(', '.join(tags)) or 'no tags'}")


def archive(arguments: argparse.Namespace) -> None:
    with answering.asked(arguments) as server:
        runs = [choose(server, each, archived_first=arguments.undo) for each in arguments.runs]
        for each in runs:
            server.patch(f"/runs/{each.run_id}", {"archived": not arguments.undo})
            print(f"{'restored' if arguments.undo else 'archived'} {_named(each)}")


def delete(arguments: argparse.Namespace) -> None:
    with answering.asked(arguments) as server:
        runs = {each.run_id: each for each in (choose(server, name) for name in arguments.runs)}
        if not arguments.yes:
            _confirm(list(runs.values()))
        for each in runs.values():
            server.delete(f"/runs/{each.run_id}")
            print(f"deleted {_named(each)}")


def _confirm(runs: list[Run]) -> None:
    """Ask on the terminal whether to delete the runs. Raises ClientError unless the user says yes."""
    if not sys.stdin.isatty():
        raise ClientError(f"pass --yes to delete {plural(len(runs), 'run')} without asking")
    for each in runs:
        running = " It is still running: its further records will be discarded."
        print(
            f"{_named(each)}: {plural(each.updates, 'update')}."
            f"{running if each.status == 'running' else ''}"
        )
    question = f"Delete {plural(len(runs), 'run')}? This cannot be undone. [y/N] "
    if input(question).strip().lower() not in {"y", "yes"}:
        raise ClientError("nothing was deleted")


def _named(run: Run) -> str:
    return f"{plain(run.name)} ({run.run_id})"
