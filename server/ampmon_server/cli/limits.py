"""Options of `ampmon serve` that limit the use of one token, and the numbers that options may hold."""

from __future__ import annotations

import argparse
import math

from ampmon_server.settings import Settings


def add_limits(serve: argparse.ArgumentParser) -> None:
    usual = Settings()
    serve.add_argument(
        "--requests-per-second",
        type=count,
        default=usual.requests_per_s,
        metavar="N",
        help="maximum requests per second of one token to a server process (%(default)g)",
    )
    serve.add_argument(
        "--streams-per-token",
        type=count,
        default=usual.streams_per_token_max,
        metavar="N",
        help="maximum live pages of one token; twice as many over all tokens (%(default)d)",
    )


def count(typed: str) -> int:
    """Parse a whole number of at least 1. Raises ValueError."""
    number = int(typed)
    if number < 1:
        raise ValueError
    return number


def amount(typed: str) -> float:
    """Parse a finite number of at least 0. Raises ArgumentTypeError."""
    try:
        number = float(typed)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{typed!r} is not a number of at least 0")
    return number
