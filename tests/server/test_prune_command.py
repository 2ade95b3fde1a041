"""`ampmon db prune`, and what a server prunes by itself: shown first, beside whoever writes; space given back."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select, text
from sqlalchemy import update as change
from starlette.testclient import TestClient

from ampmon_server.background import upkeep
from ampmon_server.cli import main
from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from ampmon_server.store.admin import space
from ampmon_server.store.admin.prune import DAY_US
from ampmon_server.store.engine import engine
from ampmon_server.store.schema.tables import runs, update_pages
from batches import Trainer
from waiting import wait_for


Prune = Callable[..., int]


@pytest.fixture
def prune(settings: Settings) -> Prune:
    """The command, on this database, for what is older than 30 days; its exit code."""

    def run(*flags: str) -> int:
        where = ["--data-dir", str(settings.data_directory)]
        if settings.database_url is not None:
            where += ["--database-url", settings.database_url]
        kept = ["--keep-rows-days", "30", "--keep-samples-days", "30"]
        return main(["db", "prune", *where, *kept, *flags])

    return run


def old_run(store: Store, steps: int = 3000) -> UUID:
    """A run that was heard of last 90 days ago, with numbers that do not pack well."""
    trainer, chance = Trainer(name="old one"), random.Random(1)
    updates = trainer.updates(steps, sampled=range(0, steps, 100))
    store.ingest(trainer.batch([replace(each, cost=1e6 * chance.random()) for each in updates]))
    told = [
        replace(trainer.scalars({"loss": chance.random()}), ordinal=step) for step in range(steps)
    ]
    store.ingest(trainer.batch(told))
    with engine.writing(store._engine) as connection:
        connection.execute(change(runs).values(silent_after=runs.c.silent_after - 90 * DAY_US))
    return trainer.run_id


def rows(store: Store) -> int:
    with engine.reading(store._engine) as connection:
        return connection.scalar(select(func.sum(update_pages.c.updates)))


def test_what_would_go_is_shown_and_only_then_removed(
    store: Store, prune: Prune, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --yes numbers and nothing else; with it the rows go, beside the server that is open."""
    run_id = old_run(store)
    assert prune() == 0
    shown = capsys.readouterr().out
    assert f"run {run_id} old one: 5,632 rows" in shown
    assert "add --yes" in shown
    assert rows(store) == 3000
    assert prune("--yes") == 0
    assert " pages, blocks and rows in " in capsys.readouterr().out
    assert rows(store) == 184
    assert prune() == 0
    assert "There is nothing to prune" in capsys.readouterr().out


def test_rows_are_kept_where_what_is_rolled_up_of_them_is_not_sound(
    store: Store, prune: Prune, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose cells do not count what its rows do is left alone, and a line says what to do."""
    old_run(store, 800)
    with engine.writing(store._engine) as connection:
        connection.execute(text("DELETE FROM rollups WHERE level = 1 AND bucket = 1"))
    assert prune("--yes") == 0
    assert "counts 0 rows where there are 256; ampmon db verify --repair" in capsys.readouterr().err
    assert rows(store) == 800


@pytest.mark.parametrize("flags", [(), ("--at-once",)])
def test_it_rests_for_others_unless_told_not_to(
    store: Store, prune: Prune, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """Between two transactions it leaves others as long as it took itself, or no time at all."""
    old_run(store)
    rested: list[float] = []
    monkeypatch.setattr("ampmon_server.cli.db.prune.time.sleep", rested.append)
    assert prune("--yes", *flags) == 0
    assert rested
    assert any(rested) == (not flags)


def test_an_sqlite_file_shrinks(store: Store, prune: Prune) -> None:
    """A file that this version made is cut as rows go, while the server has it open."""
    old_run(store, 8000)
    before = space.used(store._engine)
    assert prune("--yes") == 0
    assert space.used(store._engine) < 0.8 * before


def test_an_sqlite_file_shrinks_while_rows_go(
    store: Store, prune: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then, and not only when all is removed: of very many free pages each would take long to be cut off."""
    old_run(store)
    monkeypatch.setattr("ampmon_server.cli.db.prune.GIVEN_BACK_AFTER", 5)
    seen = [(rows(store), space.used(store._engine))]
    monkeypatch.setattr(
        "ampmon_server.cli.db.prune.time.sleep",
        lambda _: seen.append((rows(store), space.used(store._engine))),
    )
    assert prune("--yes") == 0
    assert any(left and used < seen[0][1] for left, used in seen)


def without_cutting(settings: Settings, store: Store) -> Path:
    """Make the file one of an older version's, which cannot be cut at its end; where it is."""
    with store._engine.connect() as connection:
        connection.connection.executescript("PRAGMA auto_vacuum = NONE; VACUUM")
    store.close()
    return settings.server_directory / "ampmon.db"


def test_an_older_file_is_rewritten_once(
    settings: Settings, store: Store, prune: Prune, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what to do; rewritten it is small, and is cut by itself from then on."""
    old_run(store, 8000)
    file = without_cutting(settings, store)
    before = file.stat().st_size
    assert prune("--yes") == 0
    assert file.stat().st_size >= before
    assert "--rewrite" in capsys.readouterr().out
    assert prune("--yes", "--rewrite") == 0
    assert file.stat().st_size < 0.8 * before
    reopened = Store.open(settings)
    assert space.cuts(reopened._engine)
    reopened.close()


def test_a_file_is_not_rewritten_beside_a_server_or_without_room(
    settings: Settings,
    store: Store,
    prune: Prune,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line that says why, and an exit code of 2."""
    assert prune("--yes", "--rewrite") == 2
    store.close()
    full = shutil._ntuple_diskusage(100, 100, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert prune("--yes", "--rewrite") == 2
    assert "which has 0 MB" in capsys.readouterr().err


def test_what_cannot_be_is_refused_in_a_line(
    settings: Settings, prune: Prune, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number of days below zero, and a database that is not there."""
    shutil.rmtree(settings.server_directory)
    assert prune("--keep-rows-days", "-1") == 2
    assert prune() == 2
    refused = capsys.readouterr().err.splitlines()
    assert [line.startswith("ampmon db prune: ") for line in refused] == [True, True]


def test_a_server_prunes_by_itself(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a setting it prunes soon after it has started, and then every hour."""
    monkeypatch.setattr(upkeep, "FIRST_S", 0.01)
    keeping = Settings(
        data_directory=settings.data_directory,
        database_url=settings.database_url,
        keep_rows_days=30,
    )
    store = Store.open(settings)
    old_run(store, 3000)
    store.close()
    app: Any = create_app(keeping)
    with TestClient(app):
        opened = app.state.service.store
        wait_for(lambda: rows(opened) == 3000 - 2816)
        with engine.reading(opened._engine) as connection:
            assert connection.scalar(text("SELECT max(rows_from) FROM streams")) == 2816
