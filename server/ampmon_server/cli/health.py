"""``ampmon health``: whether a server can do its work, by its exit code: for who starts it, and probes it."""

from __future__ import annotations

import argparse
import sys

from ampmon.errors import ConfigurationError
from ampmon_server.cli import which
from ampmon_server.cli.token import asked
from ampmon_server.client.client import Asking, Unanswered


UNWELL = 1
"""Docker keeps 2 for itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare who is asked, and for how much."""
    which.add_server(parser, which.THE_ONE_HERE)
    parser.add_argument(
        "--alive",
        action="store_true",
        help="ask only whether it answers, not whether its database does",
    )


def run(arguments: argparse.Namespace) -> int:
    """0 where it can, 1 with one line that says why not. Blocks until the server answers, a minute at most."""
    try:
        asked(arguments, Asking.alive if arguments.alive else Asking.ready)
    except (Unanswered, ConfigurationError) as problem:
        print(f"ampmon health: {problem}", file=sys.stderr)
        return UNWELL
    print("alive" if arguments.alive else "ready")
    return 0
