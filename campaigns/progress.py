"""Keeps and shows the progress of a long campaign."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path


def kept(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the option --folder, from which an interrupted campaign continues."""
    parser.add_argument(
        "--folder",
        type=lambda folder: Path(folder).absolute(),  # its processes work elsewhere
        default=Path(tempfile.gettempdir(), f"ampmon-{name}"),
        help="where it keeps its progress (%(default)s)",
    )


def show(words: str) -> None:
    """Show a line of progress on stderr, on a terminal in place of the line before."""
    begin, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
    print(f"{begin}{words}", end=end, file=sys.stderr, flush=True)
