"""A store with a small run of known numbers, and exports of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

import known_run
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from databases import provide


Export = Callable[..., Path]


def store_with_known_run(directory: Path) -> Store:
    directory.chmod(0o700)
    provide(directory)
    store = Store.open(Settings(data_directory=directory, judging=False))
    known_run.send(store)
    return store


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Store]]:
    """A data directory and its store, which has the known run."""
    directory = tmp_path_factory.mktemp("held")
    store = store_with_known_run(directory)
    yield directory, store
    store.close()


@pytest.fixture
def written(tmp_path: Path) -> Export:
    """Write one table of a run as the export route does, and return the file."""
    from ampmon_server.exchange import formats
    from ampmon_server.exchange.tables import pieces

    def write(store: Store, what: str, kind: str, run_id: UUID = known_run.RUN) -> Path:
        file = tmp_path / f"{run_id}-{what}.{kind}"
        parts = formats.written(kind, what, pieces(store, run_id, what))
        file.write_bytes(b"".join(parts))
        return file

    return write
