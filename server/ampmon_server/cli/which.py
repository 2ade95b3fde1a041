"""Options shared by commands about one run: which run, and which server."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        nargs="?",
        default="latest",
        metavar="RUN",
        help="its id or the beginning of it, or its name (the newest run)",
    )


WHERE_RUNS_REPORT = "AMPMON_URL, else the one that runs on the data directory"
THE_ONE_HERE = "the one that runs on the data directory, else AMPMON_URL"


def add_server(parser: argparse.ArgumentParser, unless_named: str = WHERE_RUNS_REPORT) -> None:
    """Add the options that name the server. ``unless_named`` says in words which one is used without ``--url``."""
    parser.add_argument("--url", help=f"the server to ask ({unless_named})")
    parser.add_argument("--data-dir", type=Path, help="the server's data directory (AMPMON_DIR)")
    parser.add_argument(
        "--token-file", type=Path, help="file with a token (the data directory's, or AMPMON_TOKEN)"
    )
