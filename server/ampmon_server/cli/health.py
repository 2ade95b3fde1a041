"""``ampmon health``: reports by its exit code whether a server is ready, for process managers and probes."""

from __future__ import annotations

import argparse
import sys

from ampmon.errors import ConfigurationError
from ampmon_server.cli import which
from ampmon_server.cli.token import asked
from ampmon_server.client.client import ApiClient, ClientError


UNWELL = 1
"""Docker reserves exit code 2."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    which.add_server(parser, which.THE_ONE_HERE)
    parser.add_argument(
        "--alive",
        action="store_true",
        help="check only that the server answers, not its database",
    )


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if the server is ready, else 1 with a line that says why. Blocks for up to a minute."""
    try:
        asked(arguments, ApiClient.alive if arguments.alive else ApiClient.ready)
    except (ClientError, ConfigurationError) as problem:
        print(f"ampmon health: {problem}", file=sys.stderr)
        return UNWELL
    print("alive" if arguments.alive else "ready")
    return 0
