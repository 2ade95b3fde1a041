"""`ampmon demo`: a real fp16 training, small enough for any machine, with the page that shows it.

Importing this module does not load torch. Running the demo does.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from ampmon.system.installing import install


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps",
        type=_count,
        metavar="N",
        help="updates to train (default: as many as take about five minutes)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        metavar="PORT",
        help="port of the page (default: 8267, or a free port if that is in use)",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="directory for runs (default: AMPMON_DIR, or the user's data directory)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of weights and batches (default: 0)"
    )
    parser.add_argument(
        "--growth-interval",
        type=_count,
        metavar="N",
        help="updates between two doublings of the scale until it overflows "
        "(default: so that this takes about half a minute)",
    )
    parser.add_argument("--no-browser", action="store_true", help="open no browser")
    parser.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep serving the page after the training, until Ctrl-C",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the demo until it is done or interrupted. Return the exit code."""
    if importlib.util.find_spec("torch") is None:
        print(
            f"ampmon demo trains a model, which needs PyTorch: {install('torch')}",
            file=sys.stderr,
        )
        return 1
    from ampmon_server.demo.interrupt import Interrupt

    # Before torch is loaded: that takes seconds, in which the user may press Ctrl-C.
    with Interrupt() as interrupt:
        from ampmon_server.demo import session

        return session.run(arguments, interrupt)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 1 to 65535")
    return int(text)
