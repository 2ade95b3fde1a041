"""Options of `ampmon serve` that limit the use of one token."""

from __future__ import annotations

import argparse

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
