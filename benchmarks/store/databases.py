"""Runs a temporary PostgreSQL for a benchmark.

Its defaults for durability stay: committed data is on the disk, as on SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests import postgres


SETTINGS = ("listen_addresses=", "shared_buffers=256MB", "max_wal_size=4GB", "max_connections=200")


@contextmanager
def postgresql() -> Iterator[postgres.Postgres | str]:
    """Yield a running server, or why there is none."""
    with ExitStack() as stack:
        try:
            found: postgres.Postgres | str = stack.enter_context(postgres.running(SETTINGS))
        except RuntimeError as problem:
            found = f"not measured: {problem}"
        yield found
