"""Options of commands that ask about one run: which, and whom."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare which run is meant."""
    parser.add_argument(
        "run",
        nargs="?",
        default="latest",
        metavar="RUN",
        help="its id or the beginning of it, or its name (the newest run)",
    )


def add_server(parser: argparse.ArgumentParser) -> None:
    """Declare who is asked."""
    parser.add_argument("--url", help="the server to ask (the one that runs on the data directory)")
    parser.add_argument("--data-dir", type=Path, help="where data lies (AMPMON_DIR)")
    parser.add_argument(
        "--token-file", type=Path, help="file with a token that several servers share"
    )
