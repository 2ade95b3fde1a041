"""``ampmon rename``, ``tag``, ``archive`` and ``delete``: change runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ampmon_server.cli.exits import CANNOT
from ampmon_server.cli.which import add_server


if TYPE_CHECKING:
    from ampmon_server.client import ApiClient
    from ampmon_server.client.answers import Run

_RUN = "its id or the beginning of it, or its name"


def add_rename(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=_RUN)
    parser.add_argument("name", metavar="NAME", help="the new name")
    add_server(parser)


def add_tag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=_RUN)
    parser.add_argument("tags", nargs="*", metavar="TAG", help="tags to add (print those it has)")
    parser.add_argument("--remove", nargs="+", default=(), metavar="TAG", help="tags to remove")
    add_server(parser)


def add_archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help=_RUN)
    parser.add_argument("--undo", action="store_true", help="restore archived runs")
    add_server(parser)


def add_delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help=_RUN)
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Change runs and print what was done. Return 0, or 2 if something failed."""
    from ampmon_server.client import ClientError, answering

    does: dict[str, Callable[[argparse.Namespace, ApiClient], None]] = {
        "rename": _rename,
        "tag": _tag,
        "archive": _archive,
        "delete": _delete,
    }
    try:
        with answering(arguments.url, arguments.data_dir, arguments.token_file) as server:
            does[arguments.command](arguments, server)
    except ClientError as why:
        print(f"ampmon {arguments.command}: {why}", file=sys.stderr)
        return CANNOT
    return 0


def _rename(arguments: argparse.Namespace, server: ApiClient) -> None:
    from ampmon_server.client import choose

    chosen = choose(server, arguments.run)
    server.patch(f"/runs/{chosen.run_id}", {"name": arguments.name})
    print(f"renamed {_named(chosen)} to {arguments.name}")


def _tag(arguments: argparse.Namespace, server: ApiClient) -> None:
    from ampmon.system.plain import plain
    from ampmon_server.cli.terminal.answers import SummaryAnswer
    from ampmon_server.client import choose
    from ampmon_server.client.answers import read

    chosen = choose(server, arguments.run)
    path = f"/runs/{chosen.run_id}"
    had = read(server.get(path), SummaryAnswer).tags
    both = dict.fromkeys([*had, *arguments.tags])
    tags = [tag for tag in both if tag not in arguments.remove]
    if tags != list(had):
        server.patch(path, {"tags": tags})
    print(f"{_named(chosen)}: {plain(', '.join(tags)) or 'no tags'}")


def _archive(arguments: argparse.Namespace, server: ApiClient) -> None:
    from ampmon_server.client import choose

    chosen = [choose(server, each, archived_first=arguments.undo) for each in arguments.runs]
    for each in chosen:
        server.patch(f"/runs/{each.run_id}", {"archived": not arguments.undo})
        print(f"{'restored' if arguments.undo else 'archived'} {_named(each)}")


def _delete(arguments: argparse.Namespace, server: ApiClient) -> None:
    from ampmon_server.client import ClientError, choose
    from ampmon_server.model.words import plural

    chosen = {each.run_id: each for each in (choose(server, name) for name in arguments.runs)}
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise ClientError(f"pass --yes to delete {plural(len(chosen), 'run')} without asking")
        for each in chosen.values():
            running = " It is still running: its further records will be discarded."
            print(
                f"{_named(each)}: {plural(each.updates, 'update')}."
                f"{running if each.status == 'running' else ''}"
            )
        question = f"Delete {plural(len(chosen), 'run')}? This cannot be undone. [y/N] "
        if input(question).strip().lower() not in {"y", "yes"}:
            raise ClientError("nothing was deleted")
    for each in chosen.values():
        server.delete(f"/runs/{each.run_id}")
        print(f"deleted {_named(each)}")


def _named(run: Run) -> str:
    from ampmon.system.plain import plain

    return f"{plain(run.name)} ({run.run_id})"
