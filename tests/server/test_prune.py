"""Pruning: what is removed, what stays readable, runs that continue, and deleted runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal
from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest
from sqlalchemy import func, make_url, select
from sqlalchemy import update as change

from ampmon import wire
from ampmon_server.charts import FIGURES, ScaleSource, Source, View
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import count
from ampmon_server.queries.whatif_reader import measured
from ampmon_server.settings import Settings
from ampmon_server.store import Busy, Edit, Failures, Keep, NotFound, PruneTask, Store, Verification
from ampmon_server.store.admin.prune import DAY_US, ROWS_MAX
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.schema.tables import (
    events,
    gradient_blocks,
    metadata,
    rollups,
    runs,
    scalar_pages,
    skips,
    streams,
    update_pages,
)
from batches import START, Trainer, statistics
from databases import provide
from postgres import Postgres


DAYS = 30
BOTH = Keep(rows_days=DAYS, samples_days=DAYS)
RUN = UUID(int=1)
"""A run that every database here begins with."""


def held(store: Store, table: object) -> int:
    with engine.reading(store._engine) as connection:
        return connection.scalar(select(func.count()).select_from(table))


def updates(store: Store) -> int:
    with engine.reading(store._engine) as connection:
        return int(connection.scalar(select(func.sum(update_pages.c.updates))) or 0)


def age(store: Store, trainer: Trainer, days: float = 2 * DAYS) -> None:
    """Make a run last heard of ``days`` days earlier."""
    with engine.writing(store._engine) as connection:
        of_run = runs.c.run_id == trainer.run_id.bytes
        earlier = runs.c.silent_after - int(days * DAY_US)
        connection.execute(change(runs).where(of_run).values(silent_after=earlier))


def train(settings: Settings) -> None:
    """Store a run that skips every 97th update, samples every 50th and logs a loss every tenth."""
    store, trainer, steps = Store.open(settings), Trainer(RUN), 5000
    records = trainer.updates(steps, skipped=range(0, steps, 97), sampled=range(0, steps, 50))
    store.ingest(trainer.batch([trainer.event("init"), *records]))
    losses = [
        msgspec.structs.replace(trainer.scalars({"loss": 1.0 / (step + 1)}), ordinal=step)
        for step in range(0, steps, 10)
    ]
    store.ingest(trainer.batch(losses))
    store.close()


@pytest.fixture(scope="module")
def trained_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database that holds the run, to copy."""
    settings = Settings(data_directory=tmp_path_factory.mktemp("trained"))
    provide(settings.data_directory)
    train(settings)
    return settings.server_directory / "ampmon.db"


@pytest.fixture(scope="module")
def trained_database(
    postgres: Postgres, migrated: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The name of a PostgreSQL database that holds the run, to clone."""
    url = postgres.new_database(migrated)
    train(Settings(data_directory=tmp_path_factory.mktemp("trained"), database_url=url))
    yield str(make_url(url).database)
    postgres.drop(url)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The URL of a PostgreSQL database that holds the run; None for SQLite."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield None
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.new_database(request.getfixturevalue("trained_database"))
    yield url
    postgres.drop(url)


@pytest.fixture
def settings(settings: Settings, trained_file: Path) -> Settings:
    """Settings of a server whose database holds the run."""
    if settings.database_url is None:
        shutil.copy(trained_file, settings.server_directory)
    return settings


@pytest.fixture
def trainer(store: Store) -> Trainer:
    """The stored run of 5000 updates."""
    return Trainer(RUN)


def prune(store: Store, keep: Keep = BOTH) -> int:
    """Prune all that is due, and return how many rows were removed."""
    return sum(sum(store.prune(due)) for due in store.due(keep))


def test_a_step_of_the_schedule_counts_once_though_its_row_is_gone(store: Store) -> None:
    """A learning-rate step counts once, even if its row is pruned and a late rank reports it again."""
    trainer = Trainer(world_size=2)
    late = Trainer(trainer.run_id, 1, world_size=2)
    for each in (trainer, late):
        store.ingest(each.batch([each.update(scheduled=step == 51) for step in range(600)]))
        age(store, trainer)
        prune(store)
    assert store.case(trainer.run_id).scheduled == 1


@pytest.mark.engines
def test_rows_go_and_what_is_rolled_up_stays(store: Store, trainer: Trainer) -> None:
    """Pruning leaves an old run's newest page of rows, and keeps summary, skips, events and every cell."""
    before = store.run(trainer.run_id)[0]
    cells = store.series(trainer.run_id, columns=100).updates.tobytes()
    kept = {table: held(store, table) for table in (rollups, skips, events)}
    age(store, trainer)
    assert prune(store) > 0

    assert updates(store) == 5000 - 4864
    logged = store.scalars(RUN, "loss", stream=None, start=0, stop=5000, limit=5000)
    assert len(logged.step) == 13
    assert held(store, scalar_pages) == 1
    assert 0 < held(store, gradient_blocks) < 10
    assert kept == {table: held(store, table) for table in kept}
    after = store.run(trainer.run_id)[0]
    assert (after.updates, after.skipped, after.sampled_updates) == (
        before.updates,
        before.skipped,
        before.sampled_updates,
    )
    assert store.series(trainer.run_id, columns=100).updates.tobytes() == cells
    assert prune(store) == 0


def test_a_window_where_rows_are_gone_shows_whole_cells(store: Store, trainer: Trainer) -> None:
    """A zoomed window over pruned rows shows whole cells of 16 steps, and the captions say so."""
    age(store, trainer)
    prune(store)
    series = store.series(trainer.run_id, start=1000, stop=1100, columns=1000)
    found = series.updates
    assert found["n"].tolist() == [16] * 6
    assert (found["first"][0], found["last"][-1]) == (1008, 1103)
    columns, following, rows_from = store.updates(
        trainer.run_id, stream=None, start=0, stop=10_000, limit=100
    )
    assert columns["step"] == list(range(4864, 4964))
    assert (following, rows_from) == (4964, 4864)
    source = Source(found, series.gradients, rows_from=series.scaler.rows_from)
    for name in ("scale", "skips"):
        caption = FIGURES[name](source, View(1000, 1100))["layout"]["meta"]["caption"]
        assert "steps are stored in groups of 16" in caption
    assert store.parameters(trainer.run_id).step == 4950
    with pytest.raises(NotFound, match="Samples before step 4096 were pruned"):
        store.parameters(trainer.run_id, step=1000)


def test_a_range_of_time_has_its_samples_where_rows_are_gone(store: Store) -> None:
    """Samples whose updates are pruned stay in a range of time that begins within a cell of these updates."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(600, sampled=range(600))))
    age(store, trainer)
    prune(store)
    series = store.series(trainer.run_id, start=START + 50_000 * 505, by="time")
    assert (series.scaler.rows_from, series.updates["first"][0]) == (512, 512)
    assert series.gradients["n"].sum() == 600 - 505
    cells = store.parameter_series(trainer.run_id, series.stretch).cells
    assert cells["n"].sum() == 600 - 505


def test_one_parameter_is_moved_to_other_scales_where_the_row_of_its_sample_is_gone(
    store: Store,
    trainer: Trainer,
) -> None:
    """A sample keeps its own scale, so what-if works for a parameter whose update row is pruned."""
    resumed = Trainer(run_id=trainer.run_id, resume_step=5000)
    store.ingest(resumed.batch(resumed.updates(200)))
    before = measured(store, trainer.run_id, parameter="head.weight")
    age(store, trainer)
    prune(store)
    assert not store.updates(trainer.run_id, stream=None, start=4950, stop=4951, limit=1)[0]["step"]
    after = measured(store, trainer.run_id, parameter="head.weight")
    assert isinstance(before, ScaleSource)
    assert isinstance(after, ScaleSource)
    assert (after.gradient.first, after.gradient.level) == (4950, 10)
    assert np.array_equal(after.gradient.histogram, before.gradient.histogram)


def test_samples_that_are_gone_are_counted_where_a_cell_has_only_some_of_its_own(
    store: Store,
) -> None:
    """After pruning, the cells of every zoom still count all samples of a burst and the rare ones after it."""
    trainer = Trainer()
    steps = [*range(16), *range(256, 3 * 4096, 256)]
    given = {"gradients": statistics().to_wire()}
    store.ingest(trainer.batch([trainer.update(ordinal=step, **given) for step in steps]))
    age(store, trainer)
    assert prune(store) > 0
    for columns in (4, 40, 400, 4000):
        assert store.series(trainer.run_id, columns=columns).gradients["n"].sum() == len(steps)
        cells = store.parameter_series(trainer.run_id, columns=columns).cells
        assert cells["n"].sum() == len(steps)


@pytest.mark.parametrize("by", ["step", "time"])
def test_windows_of_rarely_sampled_updates_share_out_what_pruning_left(
    store: Store, by: Literal["step", "time"]
) -> None:
    """Of a run with rare samples, pruning leaves cells of 4096 steps, each in one of neighbouring windows."""
    trainer, given = Trainer(), {"gradients": statistics().to_wire()}
    steps = sorted({*range(0, 100_000, 200), *range(20_500, 21_500, 3)})
    store.ingest(trainer.batch([trainer.update(ordinal=step, **given) for step in steps]))
    age(store, trainer)
    assert prune(store) > 0

    def windows(cuts: Sequence[int], columns: int) -> Iterator[list[Cells]]:
        at = [cut if by == "step" else START + 50_000 * cut for cut in cuts]
        for ends in pairwise([0, *at, INTEGER_MAX + 1]):
            view = {"start": ends[0], "stop": ends[1], "by": by}
            gradients = store.series(trainer.run_id, **view, columns=columns).gradients
            stretch = Stretch(*view.values())
            parameters = store.parameter_series(trainer.run_id, stretch, columns=columns)
            yield [gradients, parameters.cells]

    for whole in next(windows([], 1000)):
        assert len(whole) > 100_000 >> 12
        assert (whole["last"] - whole["first"] < 4096).all()
    for cuts in [[60_000], [50_000, 60_000], [20_800, 90_000], [4097, 98_500]]:
        for columns in (10, 100, 1000):
            for cells in zip(*windows(cuts, columns), strict=True):
                assert sum(each["n"].sum() for each in cells) == len(steps)
                for each, (start, stop) in zip(cells, pairwise([0, *cuts, 100_000]), strict=True):
                    assert len(each)
                    assert each["first"].min() >= start
                    assert each["first"].max() < stop
                    assert each["last"].max() < stop + 4096


def test_a_run_whose_samples_are_pruned_is_judged_by_the_finest_cells_that_are_left(
    store: Store,
) -> None:
    """A run with rare samples is judged by cells of 4096 steps and all newest samples, after pruning too."""
    trainer, given = Trainer(), {"gradients": statistics().to_wire()}
    steps = range(0, 100_000, 200)
    store.ingest(trainer.batch([trainer.update(ordinal=step, **given) for step in steps]))
    age(store, trainer)
    assert prune(store) > 0
    (scaler,) = store.case(trainer.run_id).scalers
    held = [step for step in steps if step >= 24 * 4096]
    assert store.series(trainer.run_id).gradients["n"].sum() == len(steps)
    assert scaler.samples.step[-len(held) :].tolist() == held
    assert scaler.parameters.cells["n"].sum() >= len(held)


def test_a_run_that_goes_on_after_it_was_pruned_counts_exactly(
    store: Store, trainer: Trainer
) -> None:
    """A run that continues after pruning counts every new update once and no pruned one again."""
    age(store, trainer)
    prune(store)
    resumed = Trainer(run_id=trainer.run_id)
    store.ingest(resumed.batch(resumed.updates(1000, skipped=[3], sampled=range(0, 1000, 50))))
    summary = store.run(trainer.run_id)[0]
    assert (summary.updates, summary.last_step) == (6000, 5999)
    assert summary.skipped == len(range(0, 5000, 97)) + 1
    assert summary.sampled_updates == 120
    counts = count(store.series(trainer.run_id, columns=50).updates)
    assert counts == (6000, summary.skipped, 120)


def test_a_run_that_goes_on_before_its_turn_is_left_alone(store: Store, trainer: Trainer) -> None:
    """A run that reports again after it was found due keeps all its rows."""
    age(store, trainer)
    (due,) = store.due(BOTH)
    resumed = Trainer(run_id=trainer.run_id)
    store.ingest(resumed.batch(resumed.updates(10)))
    assert list(store.prune(due)) == []
    assert updates(store) == 5010
    assert store.due(BOTH) == []


def test_steps_done_again_where_rows_are_gone_change_no_cell(
    store: Store, trainer: Trainer
) -> None:
    """Steps redone over pruned rows are not counted again; new steps are."""
    age(store, trainer)
    prune(store)
    resumed = Trainer(run_id=trainer.run_id, resume_step=4000)
    store.ingest(resumed.batch(resumed.updates(1100)))
    summary = store.run(trainer.run_id)[0]
    assert (summary.updates, summary.last_step) == (5100, 5099)
    assert count(store.series(trainer.run_id, columns=50).updates).updates == 5100
    with engine.reading(store._engine) as connection:
        assert connection.scalar(select(func.max(streams.c.updates))) == 5100


def test_a_value_logged_again_replaces_the_old_one_after_pruning(
    settings: Settings, store: Store
) -> None:
    """A resumed run replaces a value in the newest page of its name, even if updates from there on are pruned."""
    trainer = Trainer()

    def logged(by: Trainer, ordinal: int, value: float) -> wire.Scalars:
        return msgspec.structs.replace(by.scalars({"val_loss": value}), ordinal=ordinal)

    records = [*trainer.updates(10_300), *(logged(trainer, at, 0.5) for at in (0, 5000, 10_000))]
    store.ingest(trainer.batch(records))
    age(store, trainer)
    prune(store)
    resumed = Trainer(trainer.run_id, resume_step=10_000)
    again = [*resumed.updates(600), logged(resumed, 0, 0.125), logged(resumed, 500, 0.25)]
    store.ingest(resumed.batch(again))
    (name,) = store.scalar_names(trainer.run_id)
    assert (name.n, name.step, name.value) == (4, 10_500, 0.25)
    cells = store.scalar_series(trainer.run_id, "val_loss", Stretch())
    assert cells["first"].tolist() == [0, 5000, 10_000, 10_500]
    assert cells["value_last"].tolist() == [0.5, 0.5, 0.125, 0.25]
    with Verification.begin(settings) as verification:
        assert verification.run(trainer.run_id) == []


@pytest.mark.parametrize("keep", [Keep(rows_days=DAYS), BOTH])
def test_samples_done_again_where_rows_are_gone_count_once(
    settings: Settings, store: Store, trainer: Trainer, keep: Keep
) -> None:
    """Samples of steps redone over pruned rows count once, also after another pruning."""
    age(store, trainer)
    prune(store, keep)
    resumed = Trainer(run_id=trainer.run_id, resume_step=4500)
    store.ingest(resumed.batch(resumed.updates(800, sampled=range(25, 800, 50))))
    for again in (False, True):
        if again:
            age(store, trainer)
            assert prune(store) > 0
        for columns in (10, 5000):
            gradients = store.series(trainer.run_id, columns=columns).gradients
            cells = store.parameter_series(trainer.run_id, columns=columns).cells
            assert gradients["n"].sum() == cells["n"].sum() == 90 + 16
        assert store.parameters(trainer.run_id, step=4960).step == 4925
        assert store.modules(trainer.run_id, step=4960).step == 4925
        with Verification.begin(settings) as verification:
            assert verification.run(trainer.run_id) == []
    assert not any(map(store.left, store.due(BOTH)))


@pytest.mark.storage
def test_a_run_grows_old_from_its_last_record(store: Store, trainer: Trainer) -> None:
    """Renaming an old run does not delay its pruning."""
    age(store, trainer)
    store.edit(trainer.run_id, Edit(name="a better name"))
    (due,) = store.due(BOTH)
    assert (due.run_id, due.rows, due.samples) == (trainer.run_id, True, True)


def test_only_what_is_old_is_pruned_and_only_what_is_asked(store: Store, trainer: Trainer) -> None:
    """Only runs older than the limit are pruned, and rows and samples have separate limits."""
    new = Trainer()
    store.ingest(new.batch(new.updates(600)))
    age(store, trainer)
    age(store, new, days=1)
    assert [due.run_id for due in store.due(BOTH)] == [RUN]
    assert store.due(Keep()) == []
    blocks = held(store, gradient_blocks)
    prune(store, Keep(samples_days=DAYS))
    assert updates(store) == 5600
    assert held(store, gradient_blocks) < blocks
    prune(store, Keep(rows_days=DAYS))
    assert updates(store) == 136 + 600


@pytest.mark.storage
def test_attempts_are_distinguished_without_their_rows(store: Store, trainer: Trainer) -> None:
    """Pruning changes neither skips, cells nor newest sample of a run whose later attempt redid steps."""
    second = Trainer(run_id=trainer.run_id, resume_step=4500)
    store.ingest(second.batch(second.updates(600, sampled=range(0, 600, 50))))
    before = [(skip.step, skip.attempt) for skip in store.skips(trainer.run_id, limit=1000).rows]
    cells = store.series(trainer.run_id, columns=100).updates.tobytes()
    newest = store.parameters(trainer.run_id)
    age(store, trainer)
    for keep in (Keep(rows_days=DAYS), BOTH):
        assert prune(store, keep) > 0
        assert [
            (skip.step, skip.attempt) for skip in store.skips(trainer.run_id, limit=1000).rows
        ] == before
        assert store.series(trainer.run_id, columns=100).updates.tobytes() == cells
        assert store.parameters(trainer.run_id) == newest


def test_a_rank_that_left_keeps_no_rows_and_no_samples(store: Store) -> None:
    """Pruning a run resumed on fewer ranks also removes the rows and samples of the rank that left."""
    rows, blocks = updates(store), held(store, gradient_blocks)
    ranks = [Trainer(rank=0, world_size=2)]
    ranks.append(Trainer(run_id=ranks[0].run_id, rank=1, world_size=2))
    for each in ranks:
        store.ingest(each.batch(each.updates(100)))
    alone = Trainer(run_id=ranks[0].run_id, resume_step=100)
    store.ingest(alone.batch(alone.updates(3000)))
    age(store, alone)
    assert prune(store) > 0
    assert updates(store) == rows + 3100 - 3072

    sharded = Trainer(layout="sharded", world_size=2)
    other = Trainer(run_id=sharded.run_id, rank=1, layout="sharded", world_size=2)
    for each in (sharded, other):
        store.ingest(each.batch(each.updates(100, sampled=[0, 50])))
    alone = Trainer(run_id=sharded.run_id, layout="sharded", resume_step=4000)
    store.ingest(alone.batch(alone.updates(300, sampled=[0, 250])))
    age(store, alone)
    assert prune(store) > 0
    assert held(store, gradient_blocks) == blocks + 1
    assert updates(store) == rows + 3100 - 3072 + 4300 - 4096


def test_the_last_samples_of_a_rank_that_left_stay_in_its_cells(
    settings: Settings, store: Store
) -> None:
    """Pruning keeps every sample of a rank that left in its parameters' cells, also if the rank comes back."""
    first = Trainer(layout="sharded", world_size=2)
    other = Trainer(first.run_id, rank=1, layout="sharded", world_size=2)
    for each in (first, other):
        store.ingest(each.batch(each.updates(500, sampled=range(0, 500, 20))))

    def samples_of_other() -> int:
        return int(store.parameter_series(first.run_id, stream=1).cells["n"].sum())

    alone = Trainer(first.run_id, resume_step=500, layout="sharded", started=START + 10**9)
    store.ingest(alone.batch(alone.updates(9500, sampled=range(0, 9500, 20))))
    for _ in range(2):
        age(store, first)
        prune(store)
        assert samples_of_other() == 25
    made = {"layout": "sharded", "world_size": 2, "started": START + 2 * 10**9}
    again = [Trainer(first.run_id, rank, resume_step=10_000, **made) for rank in (0, 1)]
    for each in again:
        store.ingest(each.batch(each.updates(600, sampled=range(0, 600, 20))))
    assert samples_of_other() == 25 + 30
    with Verification.begin(settings) as verification:
        assert verification.run(first.run_id) == []


def test_an_interrupt_is_made_good_the_next_time(store: Store, trainer: Trainer) -> None:
    """An interrupted pruning leaves counts right, and the next one removes the rest."""
    age(store, trainer)
    (due,) = store.due(BOTH)
    steps: Iterator[int] = store.prune(due)
    next(steps), next(steps)
    assert store.left(due)
    assert count(store.series(trainer.run_id, columns=50).updates).updates == 5000
    assert prune(store) > 0
    assert store.due(BOTH) == [due]
    assert not store.left(due)


def test_several_failures_in_a_row_end_it() -> None:
    """A run that fails does not stop the others, but three failures in a row raise Busy."""
    reported: list[PruneTask] = []
    failures = Failures(lambda one, _: reported.append(one))
    due = [PruneTask(uuid4(), f"run-{number}") for number in range(6)]

    def work(*bad: int) -> None:
        for number, one in enumerate(due):
            with failures.of(one):
                if number in bad:
                    raise ValueError("away")

    work(0, 1, 3, 4)
    assert failures.runs == reported == [due[0], due[1], due[3], due[4]]
    with pytest.raises(Busy, match="away"):
        work(1, 2, 3, 5)
    assert reported[4:] == [due[1], due[2], due[3]]


def test_no_transaction_removes_more_than_a_part(store: Store, trainer: Trainer) -> None:
    """No step of pruning or clearing removes more than ROWS_MAX rows."""
    age(store, trainer)
    (due,) = store.due(BOTH)
    assert max(store.prune(due)) <= ROWS_MAX
    store.delete(trainer.run_id)
    assert max(store.clear(trainer.run_id)) <= ROWS_MAX


@pytest.mark.storage
def test_a_deleted_run_is_cleared_and_stays_away(store: Store, trainer: Trainer) -> None:
    """A deleted run is gone at once, an interrupted clearing stays due, and a late resend brings nothing back."""
    store.delete(RUN)
    assert store.runs().rows == []
    next(store.clear(trainer.run_id))
    assert store.due(Keep()) == [PruneTask(trainer.run_id, "", deleted=True)]
    prune(store, Keep())
    of_runs = [each for each in metadata.sorted_tables if "run_id" in each.c and each is not runs]
    assert {table.name: held(store, table) for table in of_runs if held(store, table)} == {}
    late = store.ingest(trainer.batch(trainer.updates(10)))
    assert not late.changed
    assert updates(store) == held(store, gradient_blocks) == 0
    assert store.due(Keep()) == []
