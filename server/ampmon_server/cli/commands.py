"""Runs all commands except `run`, and ends those that fail. Loads of the server only what a command needs."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name

from ampmon.errors import AmpmonError
from ampmon.system.installing import install
from ampmon_server.cli import CANNOT
from ampmon_server.cli.parser import commands_of, parser


WELCOME = """\
ampmon shows what mixed-precision training does to your gradients: the loss
scale, skipped steps and underflow, live.

  ampmon demo             train a small model in fp16 and watch it in a browser
  ampmon run train.py     run your training, unchanged, and watch it
  ampmon show             the newest run: its numbers, and what to change

All commands: ampmon --help
"""
_OURS = ("ampmon", "ampmon_server")


def main(argv: Sequence[str]) -> int:
    """Run one command. Return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # of a file that was replaced by a pipe
            sys.stdout.reconfigure(errors="backslashreplace")  # the encoding may lack a character
    given = argparse.Namespace(command="", what="", function=f"{__name__}:welcome")
    try:
        try:
            if argv:
                given.parser = parser()
                _, unknown = given.parser.parse_known_args(argv, given)
                if unknown:  # reported with the usage of the command, which lists what there is
                    given.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
            return int(resolve_name(given.function)(given) or 0)
        finally:
            sys.stdout.flush()  # here, where a failure is caught, and not when Python ends
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        _discard_stdout()
        return 1
    except (AmpmonError, OSError) as error:
        return _end(given, error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            raise
        needed = f"This needs ampmon's server: {install('server')}"
        print(f"{needed} ({error.name} is missing)", file=sys.stderr)
        return CANNOT


def welcome(_: argparse.Namespace) -> None:
    """Print what to begin with."""
    print(WELCOME, end="")


def _end(given: argparse.Namespace, error: Exception) -> int:
    """Print why a command failed, and return its exit code. For a file: "train.log: No such file or directory"."""
    if not str(error):  # nobody expected it, and only its traceback says what it is
        raise error
    words = filter(None, ["ampmon", given.command, given.what])
    why = str(error)
    if isinstance(error, OSError) and error.strerror:
        named = "" if error.filename is None else f"{error.filename}: "
        why = f"{named}{error.strerror}"
    print(f"{' '.join(words)}: {why}", file=sys.stderr)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _discard_stdout()
    return CANNOT


def _discard_stdout() -> None:
    """Let Python write the rest of its buffer nowhere when it ends, because another failure would be reported there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def completion(arguments: argparse.Namespace) -> None:
    """Print a script with which a shell completes commands, flags and files."""
    import shtab

    whole = parser()
    training = commands_of(whole)["run"]
    training.add_argument("--no-serve", action="store_true")
    training.add_argument("command", nargs=argparse.REMAINDER, type=Path)
    for action in _of_paths(whole):
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, arguments.shell))


def _of_paths(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and its sub-commands that are files or folders."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _of_paths(each)
        elif action.type is Path:
            yield action
