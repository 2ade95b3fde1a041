"""Runs a temporary PostgreSQL for a benchmark.

Its defaults for durability stay: committed data is on the disk, as on SQLite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ampmon_server.settings import Settings
from benchmarks.server import serving
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


def beside_postgresql(
    rows: list[dict[str, Any]],
    directory: Path,
    measure: Callable[[Settings], list[dict[str, Any]]],
) -> list[dict[str, Any]]:
    """SQLite's ``rows``, then those of a new PostgreSQL database, or one row that says why there is none."""
    with postgresql() as server:
        if isinstance(server, str):
            return [*rows, {**dict.fromkeys(rows[0]), "engine": "PostgreSQL", "note": server}]
        place, url = directory / "postgresql", server.new_database()
        return [*rows, *measure(Settings(data_directory=place, database_url=url))]


def served(settings: Settings) -> AbstractContextManager[tuple[str, str, int]]:
    """Run a server on a database. Yields what `serving` does."""
    elsewhere = ["--database-url", settings.database_url] if settings.database_url else []
    return serving(settings.data_directory, *elsewhere)
