"""`ampmon db verify` finds a database clean as ingest left it, and finds every kind of damage."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import text

from ampmon import wire
from ampmon_server.model.words import plural
from ampmon_server.settings import Settings
from ampmon_server.store import Keep, Store, Verification
from ampmon_server.store.admin.derived import REPAIR, RESTORE
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.opening import url_of
from batches import Trainer
from typed import typed


Say = Callable[..., tuple[int, list[str]]]


def train(store: Store) -> UUID:
    """A run of two ranks and a resumed attempt, with skips, samples, scalars and events, some of them lost."""
    first = Trainer(world_size=2)
    _send(store, first, 600)
    _send(store, Trainer(first.run_id, rank=1, world_size=2), 590)
    _send(store, Trainer(first.run_id, resume_step=550), 80)
    return first.run_id


def _send(store: Store, trainer: Trainer, updates: int) -> None:
    records: list[wire.Record] = [trainer.event("start")]
    for _ in range(0, updates, 10):
        records += trainer.updates(10, skipped=[3], sampled=[4])
        records += [trainer.scalars({"loss": 1.5})] if trainer.rank else []
    for first in range(0, len(records), 60):
        some = records[first : first + 60]
        store.ingest(trainer.batch([each for each in some if each.seq % 97 != 50]))


@pytest.fixture
def run_id(store: Store) -> UUID:
    return train(store)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file that holds such a run and that no server has open."""
    settings = Settings(data_directory=tmp_path_factory.mktemp("made"))
    store = Store.open(settings)
    train(store)
    store.close()
    return Path(str(url_of(settings).database))


@pytest.fixture
def copied(made: Path, settings: Settings) -> Path:
    """A copy of that file, where the settings say."""
    return Path(shutil.copy(made, settings.server_directory))


@pytest.fixture
def change(settings: Settings) -> Iterator[Callable[[str], None]]:
    """A function that runs a statement on the database, which must change something."""
    opened = engine.open_engine(url_of(settings))

    def run(statement: str) -> None:
        with engine.writing(opened) as connection:
            assert connection.execute(text(statement)).rowcount

    yield run
    opened.dispose()


@pytest.fixture
def verify(settings: Settings) -> Say:
    """Run the command; return its exit code and the lines that it printed."""

    def run(*more: str) -> tuple[int, list[str]]:
        where = ["--data-dir", str(settings.data_directory)]
        if settings.database_url is not None:
            where += ["--database-url", settings.database_url]
        code, out, err = typed("db", "verify", *where, *more)
        found = out.splitlines()
        assert code == 2 or f": {plural(len(found), 'defect')} found" in err
        return code, found

    return run


def test_what_ingest_left_is_clean(run_id: UUID, verify: Say) -> None:
    """A run with overlapping attempts and lost records is clean, while a server has it open."""
    assert verify() == (0, [])
    assert verify("--run", str(run_id)) == (0, [])


def test_ranks_may_come_in_any_order(store: Store, verify: Say) -> None:
    """A run of three sampling ranks is clean, though the lowest reports last."""
    first = Trainer()
    for rank in (2, 1, 0):
        trainer = Trainer(first.run_id, rank, world_size=3)
        store.ingest(trainer.batch(trainer.updates(20, sampled=[3, 7])))
    assert verify() == (0, [])


@pytest.mark.engines
def test_rollups_are_held_to_rows_and_repaired(
    run_id: UUID, change: Callable[[str], None], store: Store, verify: Say
) -> None:
    """Damaged, stale, missing and surplus pages are found at their levels, and rebuilt from the rows."""
    change("UPDATE rollups SET data = substr(data, 2) WHERE level = 1 AND bucket = 0")
    change("DELETE FROM rollups WHERE level = 2 AND bucket = 0")
    change("UPDATE runs SET updates = updates + 1, lost = 0")
    change("UPDATE streams SET updates = updates + 1 WHERE rank = 1 AND scaler <> ''")
    change(
        "INSERT INTO rollups SELECT run_id, 99, level, bucket, data FROM rollups WHERE level = 3"
    )

    code, found = verify()

    assert code == 1
    assert [
        any(word in line for line in found)
        for word in (
            "1 page of level 1 cannot be read",
            "1 page of level 2 counts 0 rows",
            "its stored total of updates",
            "its stored total of lost",
            "first and last step are (",
            "rollups, stream 99",
        )
    ] == [True] * 6
    assert all("; " in line and "--repair" in line for line in found)
    store.close()
    assert verify("--repair") == (0, [])
    assert verify() == (0, [])


def test_repaired_cells_equal_those_that_ingest_made(
    change: Callable[[str], None], store: Store, verify: Say
) -> None:
    """Each level is rebuilt from the one below, so that sums are rounded alike."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(3000, sampled=range(3000))))
    pages = text("SELECT * FROM gradient_rollups ORDER BY level, bucket")
    with engine.reading(store._engine) as connection:
        made = connection.execute(pages).all()
    store.close()
    change("DELETE FROM gradient_rollups")
    assert verify("--repair") == (0, [])
    with engine.reading(store._engine) as connection:
        assert connection.execute(pages).all() == made


def test_a_pruned_run_is_clean_and_its_cells_are_not_lost(
    store: Store, change: Callable[[str], None], verify: Say
) -> None:
    """A pruned run is clean; lost higher levels are rebuilt from lower ones, and lost lowest cells are reported."""
    first = Trainer()
    logged = [first.scalars({"loss": 1.0})]
    store.ingest(first.batch([*first.updates(4500, sampled=range(0, 4500, 300)), *logged]))
    _prune(store)
    again = Trainer(first.run_id, resume_step=4300)
    store.ingest(again.batch(again.updates(400, skipped=[7], sampled=[9, 390])))
    assert verify() == (0, [])
    change("DELETE FROM rollups WHERE level > 1")
    change("DELETE FROM gradient_rollups WHERE level > 3")
    code, found = verify()
    assert (code, len(found)) == (1, 8)
    store.close()
    assert verify("--repair") == (0, [])

    change("DELETE FROM rollups WHERE level = 2")
    change("UPDATE rollups SET data = substr(data, 2) WHERE level = 1 AND bucket = 0")
    code, found = verify("--repair")

    assert code == 1
    assert any(
        "steps 0 to 255: 1 page of level 1 cannot be read; it cannot be rebuilt" in each
        for each in found
    )


def _prune(store: Store) -> None:
    """Prune all runs, as if they were old."""
    with engine.writing(store._engine) as connection:
        connection.execute(text("UPDATE runs SET silent_after = 1000000000"))
    for due in store.due(Keep(rows_days=1, samples_days=1)):
        assert sum(store.prune(due)) > 0


DAMAGE = {
    "a page of rows that is gone": (
        "DELETE FROM update_pages WHERE bucket = 1",
        "are stored",
    ),
    "a bit in a page": (
        "UPDATE update_pages SET data = CAST(substr(data, 1, 50) || x'5A' || substr(data, 52) AS BLOB)",
        "update_pages",
    ),
    "a page elsewhere": (
        "UPDATE update_pages SET bucket = bucket + 7",
        "the steps of a page of rows differ from its key",
    ),
    "what stands beside a page": (
        "UPDATE update_pages SET skipped = skipped + 1",
        "its summary (skipped) differs from its rows",
    ),
    "a shorter ledger": (
        "UPDATE ledger SET last_seq = last_seq - 1 WHERE last_seq > 10 AND attempt = 1",
        "are stored",
    ),
    "an event of no record": ("UPDATE events SET seq = 77", "events are not in the ledger"),
    "a bit in a block": (
        "UPDATE gradient_blocks SET data = CAST(substr(data, 1, 100) || x'5AA55A' || substr(data, 104) AS BLOB)",
        "gradient_blocks",
    ),
    "a block elsewhere": (
        "UPDATE gradient_blocks SET last_step = last_step + 1 WHERE first_step > 100",
        "its steps differ from its key",
    ),
    "a block that is gone": (
        "DELETE FROM gradient_blocks WHERE first_step = (SELECT max(first_step) FROM gradient_blocks)",
        "stream 0: it has 65 samples, but 67 sampled updates",
    ),
    "sums of samples": (
        "UPDATE gradient_blocks SET totals = substr(totals, 1, 50) WHERE first_step < 500",
        "a block of it cannot be read",
    ),
    "names of parameters": ("DELETE FROM parameter_rollups WHERE level = 0", "the names of stream"),
    "a parameter's page": (
        "DELETE FROM parameter_rollups WHERE level = 4",
        "parameters of stream",
    ),
    "rows of no stream": (
        "UPDATE update_pages SET stream = 9 WHERE stream < 2 AND bucket = 0",
        "belong to no stream",
    ),
    "rows of a deleted run": ("UPDATE runs SET deleted = 1", "belong to a deleted run"),
    "a page of logged values that is gone": (
        "DELETE FROM scalar_pages WHERE bucket = 1",
        "scalar 'loss'",
    ),
    "a bit in a page of logged values": (
        "UPDATE scalar_pages SET data = CAST(substr(data, 1, 30) || x'5A' || substr(data, 32) AS BLOB)",
        "'loss', steps 0 to 255: a page of rows is damaged",
    ),
    "what stands beside a page of logged values": (
        "UPDATE scalar_pages SET value_max = 7 WHERE bucket = 0",
        "its summary (value_max) differs from its rows",
    ),
    "JSON": ("UPDATE runs SET tags = '{'", "runs.tags: 1 text cannot be read as JSON"),
    "JSON of another kind": (
        "UPDATE attempts SET config = '[]'",
        "attempts.config: 3 texts cannot be read as JSON",
    ),
    "a text that is not UTF-8": (
        "UPDATE attempts SET config = CAST(x'ff' AS TEXT)",
        "Stored text is damaged (column 'config' is not UTF-8); ",
    ),
    "a number that is text": (
        "UPDATE ledger SET last_step = 'x' WHERE attempt = 1",
        "ledger.last_step: 3 values of another type than integer",
    ),
    "a flag that is text": (
        "UPDATE runs SET deleted = 'x'",
        "runs.deleted: 1 value of another type than integer",
    ),
    "a header": ("DELETE FROM headers WHERE attempt = 1", "attempt 1: its header is missing"),
    "a scalar's page": (
        "UPDATE scalar_rollups SET data = (SELECT data FROM scalar_rollups WHERE level = 5) WHERE level = 1",
        "scalar 'loss'",
    ),
}


OFTEN = (
    "a text that is not UTF-8",
    "a number that is text",
    "a page elsewhere",
    "a bit in a block",
    "sums of samples",
    "rows of a deleted run",
)
"""One of each kind: texts, types, rows, samples, their sums, and rows without an owner."""


@pytest.mark.parametrize(
    "damage",
    [pytest.param(each, marks=[] if each in OFTEN else pytest.mark.rare) for each in DAMAGE],
)
def test_damage_is_found(
    copied: Path, change: Callable[[str], None], verify: Say, damage: str
) -> None:
    """Each kind of damage is reported with where, what, and what to do."""
    statement, expected = DAMAGE[damage]
    change(statement)

    code, found = verify()

    assert code == 1
    assert any(expected in line for line in found), found
    assert all(line.count(";") >= 1 for line in found)
    assert "says where" not in "".join(found)  # these lines say it


def test_what_is_left_of_a_deleted_run_is_swept(
    copied: Path, change: Callable[[str], None], verify: Say
) -> None:
    """A repair deletes rows that a deletion left behind."""
    change("UPDATE runs SET deleted = 1")

    assert verify("--repair") == (0, [])
    assert verify() == (0, [])


@pytest.mark.parametrize(
    ("damage", "mended"),
    [
        ("UPDATE runs SET updates = 'x'", True),
        ("UPDATE streams SET sampled = 'x'", True),
        ("UPDATE streams SET last_step = 1.5", True),
        ("UPDATE streams SET rows_from = 1.5", False),
        ("UPDATE streams SET stream = 'x' WHERE scaler != '' AND rank = 1", False),
        ("UPDATE rollups SET data = 'x'", False),
        ("UPDATE runs SET deleted = 'x'", False),
        ("UPDATE runs SET deleted = 2", False),
    ],
)
def test_a_repair_keeps_data_with_impossible_values(
    copied: Path, change: Callable[[str], None], verify: Say, damage: str, mended: bool
) -> None:
    """It counts again what rows tell, and reports other values. Nothing is deleted, even if a deletion is unclear."""
    sizes = _sizes(copied)
    change(damage)
    before, (code, found) = verify()[1], verify("--repair")

    assert len(before) == 1
    assert before[0].endswith(REPAIR if mended else RESTORE)
    assert (code, found) == ((0, []) if mended else (1, before))
    assert _sizes(copied) == sizes


@pytest.mark.parametrize("damage", ["last_step = 0", "last_step = NULL", "sampled = 0"])
def test_a_repair_of_counts_is_whole(
    copied: Path, change: Callable[[str], None], verify: Say, damage: str
) -> None:
    """Wrong counts of a stream hide rows from its cells. One repair corrects both."""
    sizes = _sizes(copied)
    change(f"UPDATE streams SET {damage} WHERE scaler != ''")

    assert verify("--repair") == (0, [])
    assert _sizes(copied) == sizes


@pytest.mark.parametrize(
    "damage",
    ["last_step = 0", "last_step = NULL", "sampled = 0", "rows_from = 0", "samples_from = 0"],
)
def test_a_repair_keeps_cells_whose_rows_are_pruned(
    store: Store, change: Callable[[str], None], verify: Say, damage: str
) -> None:
    """Whatever a damaged stream says of its rows, no cell is replaced by one that counts fewer of them."""
    run = Trainer()
    for _ in range(3):
        logged = [run.scalars({"loss": 1.0})]
        store.ingest(run.batch([*run.updates(1500, sampled=range(0, 1500, 5)), *logged]))
    before = _cells(store)
    _prune(store)
    store.close()
    change(f"UPDATE streams SET {damage} WHERE scaler != ''")

    verify("--repair")

    assert _cells(store) == before


def _cells(store: Store) -> list[object]:
    """The stored pages of all cells."""
    tables = ("rollups", "gradient_rollups", "parameter_rollups", "scalar_rollups")
    with engine.reading(store._engine) as connection:
        return [
            connection.execute(text(f"SELECT * FROM {table} ORDER BY stream, level, bucket")).all()
            for table in tables
        ]


def test_a_repair_keeps_the_cells_of_a_damaged_stream(
    copied: Path, change: Callable[[str], None], verify: Say
) -> None:
    """If a stream has another number, its cells stay with its rows, which may be pruned."""
    sizes = _sizes(copied)
    change("UPDATE streams SET stream = 77 WHERE scaler != '' AND rank = 1")

    assert verify("--repair")[0] == 1
    assert _sizes(copied) == sizes


def _sizes(file: Path) -> dict[str, int]:
    """The number of rows of each table."""
    with closing(sqlite3.connect(file)) as connection:
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for (name,) in names
        }


def test_a_broken_file_is_found(copied: Path, verify: Say) -> None:
    """An overwritten page of the file is found, and every line says to restore a copy."""
    with copied.open("r+b") as handle:
        handle.seek(4096 * 9)
        handle.write(bytes(2000))

    code, found = verify()

    assert code == 1
    assert found
    assert all("restore a copy" in line for line in found)


def test_repair_needs_the_file_alone(run_id: UUID, store: Store, settings: Settings) -> None:
    """--repair is refused while a server has the SQLite file open."""
    code, _, err = typed("db", "verify", "--repair", "--data-dir", settings.data_directory)
    assert code == 2
    assert "Another ampmon serve" in err
    with Verification.begin(settings) as verification:
        assert verification.runs() == [run_id]
