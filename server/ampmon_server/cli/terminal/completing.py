"""``ampmon completion``: prints a script with which a shell completes commands, flags and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path


SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete commands in")


def run(arguments: argparse.Namespace) -> int:
    import shtab

    from ampmon_server.cli.commands import commands_of, parser

    whole = parser()
    training = commands_of(whole)["run"]
    training.add_argument("--no-serve", action="store_true")
    training.add_argument("command", nargs=argparse.REMAINDER, type=Path)
    for action in _of_paths(whole):
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, arguments.shell))
    return 0


def _of_paths(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and its sub-commands that are files or folders."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _of_paths(each)
        elif action.type is Path:
            yield action
