"""Sampled gradients through their packed form, and the schema through its migration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, inspect, text

from ampmon_server import migrations
from ampmon_server.settings import Settings
from ampmon_server.store import Store, Unusable, packing, totals
from ampmon_server.store.packing import Sample, Stack
from ampmon_server.tables import metadata
from batches import statistics


@given(
    parameters=st.integers(0, 5),
    seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    wild=st.sampled_from([0.0, np.inf, np.nan]),
)
def test_a_block_gives_back_what_was_put_in(parameters: int, seeds: list[int], wild: float) -> None:
    """Every array of every sample survives packing, whatever its numbers, none of them included."""
    samples = [
        Sample(step, 1000 + step, 2.0**step, statistics(parameters, seed=seed))
        for step, seed in enumerate(seeds)
    ]
    samples[0].statistics.amax[:1] = wild
    samples[0].statistics.looked[:1] += 2**40
    samples[0].statistics.run_squares[:1] = [[64, 0, 2**50]]
    back = packing.block_from_bytes(packing.block_to_bytes(Stack.of(samples)))

    for before, after in zip(samples, back, strict=True):
        assert (before.step, before.time, before.scale) == (after.step, after.time, after.scale)
        for name in before.statistics.__slots__:
            np.testing.assert_array_equal(
                getattr(before.statistics, name), getattr(after.statistics, name), strict=True
            )


def test_totals_part_parameters_by_the_grid() -> None:
    """Parameters on fp16's grid and others are summed apart, and NaN does not look small."""
    on, off = statistics(3, seed=1), statistics(2, seed=2, on_grid=False)
    off.amax[0] = np.nan
    rows = np.concatenate(
        [
            totals.total(Stack.of([Sample(step, step, 1.0, each)]), np.full(3, 80), None)
            for step, each in enumerate((on, off))
        ]
    )
    series = totals.series(totals.samples_from_bytes([totals.samples_to_bytes(rows)]), exact=True)

    assert series.on_grid.parameters.tolist() == [3, 0]
    assert series.off_grid.parameters.tolist() == [0, 2]
    assert series.on_grid.histogram.sum(1).tolist() == [3 * 72, 0]
    assert series.on_grid.amax.tolist() == [on.amax.max(), 0.0]
    assert np.isnan(series.off_grid.amax[1])


def test_a_sample_is_small() -> None:
    """Samples of GPT-2's 148 parameters, every element looked at, take at most 6 kB each in a block of 16."""
    random = np.random.default_rng(0)
    numel = random.choice([768, 2304, 3072, 768 * 768, 768 * 2304, 768 * 3072], 148)
    shares = np.exp(-(((np.arange(64) - random.normal(24, 3, (148, 1))) / 2.2) ** 2))
    samples = [Sample(step, step, 1.0, statistics(148, seed=step)) for step in range(16)]
    for sample in samples:
        sample.statistics.histogram[:] = random.multinomial(
            numel, shares / shares.sum(1, keepdims=True)
        )
        sample.statistics.looked[:] = numel
        sample.statistics.amax[:] = sample.statistics.amax.astype(np.float32)

    assert len(packing.block_to_bytes(Stack.of(samples))) / len(samples) < 6_000


def _migrated(path: Path) -> Connection:
    connection = create_engine(f"sqlite:///{path}").connect()
    with connection.begin():
        migrations.upgrade(connection)
    return connection


def test_the_migrations_make_the_tables(tmp_path: Path) -> None:
    """An upgraded empty database has exactly the tables of `tables.py`, columns, keys and indexes included."""
    with _migrated(tmp_path / "new.db") as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})

        assert compare_metadata(context, metadata) == []
        for table in metadata.sorted_tables:
            made = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
            assert made == [column.name for column in table.primary_key]
        connection.engine.dispose()


def test_an_upgraded_database_is_left_alone(tmp_path: Path) -> None:
    """A second upgrade changes nothing."""
    _migrated(tmp_path / "same.db").close()
    before = (tmp_path / "same.db").read_bytes()
    _migrated(tmp_path / "same.db").close()

    assert (tmp_path / "same.db").read_bytes() == before


@pytest.fixture
def used(settings: Settings) -> Settings:
    """Settings of a store that was opened and closed."""
    Store.open(settings).close()
    return settings


def test_a_newer_database_is_refused(used: Settings) -> None:
    """A schema that this version does not know is not touched, and the words say what to do."""
    engine = create_engine(used.url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(Unusable, match="newer ampmon"):
        Store.open(used)


def test_what_is_no_database_is_refused(used: Settings) -> None:
    """A file that is not SQLite's is left as it is, and the words say what to do."""
    file = used.server_directory / "ampmon.db"
    file.write_bytes(b"not a database, and long enough to see that" * 100)
    with pytest.raises(Unusable, match="cannot be used as a database"):
        Store.open(used)


def test_two_servers_do_not_share_a_file(used: Settings) -> None:
    """While one has the database open another is refused; afterwards it is let in."""
    first = Store.open(used)
    with pytest.raises(Unusable, match="Another ampmon serve"):
        Store.open(used)
    first.close()

    Store.open(used).close()


@pytest.mark.parametrize("url", ["postgresql://db/ampmon", "nonsense", "sqlite://"])
def test_other_engines_are_refused(tmp_path: Path, url: str) -> None:
    """A database that this version cannot use is refused in words."""
    with pytest.raises(Unusable, match="--database-url"):
        Store.open(Settings(data_directory=tmp_path, database_url=url))
