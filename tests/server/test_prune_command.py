"""`ampmon db prune` and a server's own pruning: the preview, pruning beside a server, and freed space."""

from __future__ import annotations

import random
from collections.abc import Callable
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
from ampmon_server.store import Pruning, Store
from ampmon_server.store.admin.prune import DAY_US
from ampmon_server.store.engine import engine
from ampmon_server.store.schema.tables import runs, update_pages
from batches import Trainer
from typed import Done, typed
from waiting import wait_for


Prune = Callable[..., Done]


@pytest.fixture
def prune(settings: Settings) -> Prune:
    """Run the command on this database for data older than 30 days."""

    def run(*flags: str) -> Done:
        where = ["--data-dir", str(settings.data_directory)]
        if settings.database_url is not None:
            where += ["--database-url", settings.database_url]
        kept = ["--keep-rows-days", "30", "--keep-samples-days", "30"]
        return typed("db", "prune", *where, *kept, *flags)

    return run


def old_run(store: Store, steps: int = 3000) -> UUID:
    """Store a run last heard of 90 days ago, with numbers that compress badly."""
    trainer, chance = Trainer(name="old one"), random.Random(1)
    updates = trainer.updates(steps, sampled=range(0, steps, 100))
    store.ingest(trainer.batch([replace(each, cost=1e6 * chance.random()) for each in updates]))
    losses = [
        replace(trainer.scalars({"loss": chance.random()}), ordinal=step) for step in range(steps)
    ]
    store.ingest(trainer.batch(losses))
    with engine.writing(store._engine) as connection:
        connection.execute(change(runs).values(silent_after=runs.c.silent_after - 90 * DAY_US))
    return trainer.run_id


def rows(store: Store) -> int:
    with engine.reading(store._engine) as connection:
        return connection.scalar(select(func.sum(update_pages.c.updates)))


def test_what_would_go_is_shown_and_only_then_removed(store: Store, prune: Prune) -> None:
    """Without --yes the command only shows numbers; with it the rows go, while a server has the database open."""
    run_id = old_run(store)
    code, shown, _ = prune()
    assert code == 0
    assert f"run {run_id} old one: 5,632 rows" in shown
    assert "pass --yes" in shown
    assert rows(store) == 3000
    code, printed, _ = prune("--yes")
    assert code == 0
    assert " pages, blocks and rows in " in printed
    assert rows(store) == 184
    code, printed, _ = prune()
    assert code == 0
    assert "There is nothing to prune" in printed


def test_rows_are_kept_where_what_is_rolled_up_of_them_is_not_sound(
    store: Store, prune: Prune
) -> None:
    """A run whose cells disagree with its rows is not pruned, and a line names `ampmon db verify --repair`."""
    old_run(store, 800)
    with engine.writing(store._engine) as connection:
        connection.execute(text("DELETE FROM rollups WHERE level = 1 AND bucket = 1"))
    code, _, err = prune("--yes")
    assert code == 0
    assert "counts 0 rows where there are 256; ampmon db verify --repair" in err
    assert rows(store) == 800


@pytest.mark.parametrize("flags", [(), ("--at-once",)])
def test_it_rests_for_others_unless_configured_not_to(
    store: Store, prune: Prune, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """The command sleeps between transactions, unless --at-once is given."""
    old_run(store)
    rested: list[float] = []
    monkeypatch.setattr("ampmon_server.cli.pruning.time.sleep", rested.append)
    assert prune("--yes", *flags).code == 0
    assert rested
    assert any(rested) == (not flags)


def used(settings: Settings) -> int:
    """The size of the database in bytes."""
    with Pruning.begin(settings) as pruning:
        return pruning.used()


def test_an_sqlite_file_shrinks(settings: Settings, store: Store, prune: Prune) -> None:
    """Pruning shrinks an SQLite file while a server has it open."""
    old_run(store, 8000)
    before = used(settings)
    assert prune("--yes").code == 0
    assert used(settings) < 0.8 * before


def test_an_sqlite_file_shrinks_while_rows_go(
    settings: Settings, store: Store, prune: Prune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning shrinks an SQLite file between transactions, not only at its end."""
    old_run(store)
    monkeypatch.setattr("ampmon_server.cli.pruning.GIVEN_BACK_AFTER", 5)
    seen = [(rows(store), used(settings))]
    monkeypatch.setattr(
        "ampmon_server.cli.pruning.time.sleep",
        lambda _: seen.append((rows(store), used(settings))),
    )
    assert prune("--yes").code == 0
    assert any(left and size < seen[0][1] for left, size in seen)


@pytest.mark.parametrize(
    "words",
    [
        ("db", "prune", "--keep-rows-days"),
        ("serve", "--keep-rows-days"),
        ("serve", "--keep-samples-days"),
        ("serve", "--drain"),
    ],
)
@pytest.mark.parametrize("number", ["-1", "nan", "inf", "1e999", "x"])
def test_a_time_is_a_finite_number_of_at_least_zero(
    words: tuple[str, ...], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A negative or infinite time, NaN and a word are refused before anything starts, and named."""
    with pytest.raises(SystemExit) as refused:
        main([*words, number])
    assert refused.value.code == 2
    assert (
        f"argument {words[-1]}: {number!r} is not a number of at least 0" in capsys.readouterr().err
    )


def test_a_run_is_kept_longer_than_clocks_count(store: Store, prune: Prune) -> None:
    """A number of days that reaches beyond the year 1970 removes nothing."""
    old_run(store)
    for days in ("1e5", "1e300"):
        assert prune("--yes", "--keep-rows-days", days, "--keep-samples-days", days).code == 0
    assert rows(store) == 3000


def test_a_server_prunes_by_itself(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with `keep_rows_days` prunes soon after it starts."""
    monkeypatch.setattr(upkeep, "FIRST_S", 0.01)
    retained = Settings(
        data_directory=settings.data_directory,
        database_url=settings.database_url,
        keep_rows_days=30,
    )
    store = Store.open(settings)
    old_run(store, 3000)
    store.close()
    app: Any = create_app(retained)
    with TestClient(app):
        opened = app.state.service.store
        wait_for(lambda: rows(opened) == 3000 - 2816)
        with engine.reading(opened._engine) as connection:
            assert connection.scalar(text("SELECT max(rows_from) FROM streams")) == 2816
