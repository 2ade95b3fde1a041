"""Rollups of sampled gradients and parameters equal the merge of their samples."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, text

from ampmon import wire
from ampmon.numerics.histogram import headroom_bits
from ampmon_server.model.aggregates import gradients as cells
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.parameters import taken
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.opening import url_of
from ampmon_server.store.pages.pyramid import BITS, LEVELS
from ampmon_server.store.pages.windows import Stretch, WindowedSeries
from ampmon_server.store.samples import parameter_rollups, samples
from ampmon_server.store.samples.parameter_rollups import ParameterPart
from ampmon_server.store.samples.samples import GRADIENTS, read_series
from ampmon_server.store.streams import scalers
from ampmon_server.store.streams.scalers import Scaler, StreamSource
from ampmon_server.store.updates import updates
from batches import START, Trainer, statistics
from databases import defects, provide
from statements import statements


class Start(NamedTuple):
    """A process start on a rank, the step where it resumes, and the seed of its samples."""

    rank: int
    resume_step: int
    seed: int


STEPS = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(1, 40), st.sampled_from([1, 7, 200])),
    min_size=1,
    max_size=4,
)
"""Bursts of samples: first step, number of samples, and updates between them."""


def steps_of(bursts: Sequence[tuple[int, int, int]]) -> list[int]:
    return sorted({at + index * apart for at, count, apart in bursts for index in range(count)})


def played(
    starts: Sequence[Start], steps: Sequence[int], layout: wire.Layout, size: int
) -> list[wire.Batch]:
    """The batches of each start. A repeated step may be sampled in one start only."""
    run_id, batches = uuid4(), []
    for start in starts:
        trainer = Trainer(
            run_id, start.rank, resume_step=start.resume_step, layout=layout, world_size=3
        )
        chance = random.Random(start.seed)
        records = [
            trainer.update(
                ordinal=step,
                time=START + 50_000 * (step + start.resume_step) + chance.randrange(40_000),
                gradients=_gradients(chance) if chance.random() < 0.9 else None,
            )
            for step in steps
        ]
        batches += [
            trainer.batch(records[first : first + size]) for first in range(0, len(records), size)
        ]
    return batches


def _gradients(chance: random.Random) -> wire.Gradients:
    made = statistics(seed=chance.randrange(1000), on_grid=chance.random() < 0.8)
    if chance.random() < 0.2:
        lost = np.array([3, 0])
        made = replace(made, inf=lost, looked=made.looked + lost, amax=np.array([np.inf, 1e-4]))
    return made.to_wire()


def same(found: Cells, wanted: Cells) -> None:
    """Check that both are equal up to the order of float additions."""
    assert found.dtype == wanted.dtype
    for name in wanted.dtype.names or ():
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12, err_msg=name)


def one(of: Cells) -> Cells:
    """All cells merged into one."""
    return cells.LAYOUT.merge(of, np.zeros(min(len(of), 1), np.int64))


@hypothesis_settings(max_examples=4)
@given(
    bursts=STEPS,
    starts=st.lists(
        st.builds(Start, st.integers(0, 2), st.sampled_from([0, 0, 3, 300]), st.integers(0, 9)),
        min_size=1,
        max_size=4,
    ),
    layout=st.sampled_from(["replicated", "sharded"]),
    order=st.randoms(use_true_random=False),
    looked_at=st.lists(
        st.tuples(st.integers(0, 21_000), st.integers(1, 21_000), st.sampled_from([1, 4, 64])),
        min_size=3,
        max_size=3,
    ),
)
def test_cells_hold_what_their_samples_do(
    bursts: list[tuple[int, int, int]],
    starts: list[Start],
    layout: wire.Layout,
    order: random.Random,
    looked_at: list[tuple[int, int, int]],
) -> None:
    """At every level and in every window, cells equal their merged samples, for batches in any order."""
    batches = played(starts, steps_of(bursts), layout, size=25)
    order.shuffle(batches)
    with TemporaryDirectory() as directory:
        provide(Path(directory))
        store = Store.open(Settings(data_directory=Path(directory)))
        for batch in batches:
            store.ingest(batch)
        with engine.reading(store._engine) as connection:
            scaler = scalers.find(connection, batches[0].run_id, None)
            rows = cells.of_series(read_series(connection, scaler))
            for level in LEVELS:
                same(held(connection, scaler, level), GRADIENTS.roll(rows, level))
            for start, length, columns in looked_at:
                for by in ("step", "time"):
                    low, high = start, start + length
                    if by == "time":
                        low, high = START + 50_000 * low, START + 50_000 * high
                    stretch = Stretch(low, high, by)  # type: ignore[arg-type]
                    found = samples.window(connection, scaler, stretch, columns)
                    same(one(found), one(rows[stretch.holds(rows)]))
                    drawn = updates.window(connection, scaler, stretch, columns)
                    near = updates.narrowed(scaler, stretch, drawn)
                    narrow = samples.window(connection, scaler, near, columns)
                    assert narrow.tobytes() == found.tobytes()
                    for source in scaler.sampled:
                        hold_parameters(connection, scaler, source, stretch, columns)
        store.close()


def check_sums(settings: Settings, store: Store, run_id: UUID, shards: dict[int, int]) -> None:
    """Check samples, cells and headroom of a run, the number of whose ``shards`` is given by step."""
    with engine.reading(store._engine) as connection:
        scaler = scalers.find(connection, run_id, None)
        series = read_series(connection, scaler)
        for level in LEVELS:
            same(held(connection, scaler, level), GRADIENTS.roll(cells.of_series(series), level))
    assert series.step.tolist() == list(shards)
    assert series.on_grid.looked.tolist() == [160 * each for each in shards.values()]
    (bits,) = headroom_bits(series.on_grid.amax[-1:])
    assert store.run(run_id)[0].headroom_bits == bits
    assert defects(settings, run_id) == []


@pytest.mark.parametrize("apart", [200, 150])
def test_a_run_may_be_resumed_on_more_ranks_or_fewer(
    settings: Settings, store: Store, apart: int
) -> None:
    """Samples, cells and summary sum exactly the shards of the ranks that did a step last."""
    run_id, wanted, worlds = uuid4(), {}, (3, 1, 2)
    for index, world in enumerate(worlds):
        ranks = [
            Trainer(
                run_id,
                rank,
                started=START + index * 60_000_000,
                resume_step=index * apart,
                layout="sharded",
                world_size=world,
            )
            for rank in range(world)
        ]
        sent = [each.updates(200, sampled=range(0, 200, 10)) for each in ranks]
        for first in range(0, 200, 50):
            for trainer, records in zip(ranks, sent, strict=True):
                store.ingest(trainer.batch(records[first : first + 50]))
        wanted.update({index * apart + step: world for step in range(0, 200, 10)})
    check_sums(settings, store, run_id, wanted)
    for step in (0, 50, 190, 340, max(wanted)):
        found = store.parameters(run_id, step=step)
        assert (found.step, found.ranks) == (step, list(range(wanted[step])))


def test_shards_are_added_up_for_the_summary_when_the_last_arrives(store: Store) -> None:
    """Of the batches that bring the shards of a step, only the last makes the server read those of all ranks."""
    run_id = uuid4()
    ranks = [Trainer(run_id, rank, layout="sharded", world_size=4) for rank in range(4)]
    for rank in ranks:
        store.ingest(rank.batch(rank.updates(2, sampled=[1])))
    with statements(store._engine) as executed:
        for rank in ranks:
            store.ingest(rank.batch(rank.updates(2, sampled=[1]), headers=()))
    assert sum(each.startswith("SELECT gradient_blocks.attempt") for each in executed) == len(ranks)


@pytest.mark.parametrize("layouts", [("replicated", "sharded"), ("sharded", "replicated")])
def test_a_run_may_be_resumed_with_another_layout(
    settings: Settings, store: Store, layouts: tuple[wire.Layout, wire.Layout]
) -> None:
    """Only samples of a sharded attempt are sums over ranks, also when DDP resumes as FSDP or FSDP as DDP."""
    run_id, wanted = uuid4(), {}
    for index, layout in enumerate(layouts):
        made = {"started": START + index * 60_000_000, "layout": layout, "world_size": 2}
        ranks = [Trainer(run_id, rank, resume_step=index * 600, **made) for rank in (0, 1)]
        steps = range(0, 620, 10)
        for trainer in ranks:
            is_sampled = layout == "sharded" or not trainer.rank
            records = trainer.updates(620, sampled=steps if is_sampled else ())
            for first in range(0, 620, 100):
                store.ingest(trainer.batch(records[first : first + 100]))
        shards = 2 if layout == "sharded" else 1
        wanted.update({index * 600 + step: shards for step in steps})
    check_sums(settings, store, run_id, wanted)
    for step in (0, 590, 600, max(wanted)):
        ranks_of = list(range(wanted[step]))
        assert store.parameters(run_id, step=step).ranks == ranks_of
        assert store.modules(run_id, step=step).ranks == tuple(ranks_of)
    summary = store.run(run_id)[0]
    assert summary.sampled_updates == len(wanted)
    assert summary.zero_fraction == pytest.approx(0.1)
    assert {each["layout"] for each in summary.streams} == {layouts[1]}


def test_a_rank_that_readers_did_not_see_has_its_cells_when_a_run_becomes_sharded(
    settings: Settings, store: Store
) -> None:
    """Rank 1 of a DDP run sampled too. From the first header of its resume as FSDP on, all its samples count."""
    run_id, steps = uuid4(), range(0, 5000, 25)
    for rank in (0, 1):
        trainer = Trainer(run_id, rank, world_size=2)
        store.ingest(trainer.batch(trainer.updates(5000, sampled=steps)))
    resumed = Trainer(run_id, 0, world_size=2, layout="sharded", resume_step=5000)
    store.ingest(resumed.batch())
    assert int(store.parameter_series(run_id, stream=1).cells["n"].sum()) == len(steps)
    assert defects(settings, run_id) == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("layouts", [("replicated", "sharded"), ("sharded", "replicated")])
def test_samples_count_by_the_layout_of_their_own_attempt(
    settings: Settings, store: Store, layouts: tuple[wire.Layout, ...], order: tuple[int, ...]
) -> None:
    """Only rank 1 samples while gradients are replicated. A run that resumes with the other layout counts them alike.

    A replicated sample counts on any rank, and steps that the resume repeats count as it reports them.
    """
    run_id = uuid4()
    for resume_step, layout in zip((None, 500), layouts, strict=True):
        for rank in order:
            trainer = Trainer(run_id, rank, resume_step=resume_step, layout=layout, world_size=2)
            steps = range(0, 600, 10) if rank or layout == "sharded" else ()
            store.ingest(trainer.batch(trainer.updates(600, sampled=steps)))
    assert store.run(run_id)[0].sampled_updates == 110
    assert defects(settings, run_id) == []


def test_a_shard_of_a_resume_counts_for_no_row_of_the_start_before(
    settings: Settings, store: Store
) -> None:
    """Rank 0 had done steps that rank 1 had not, and resumes after it: until then, rank 1's parts count for nothing."""
    run_id, counted = uuid4(), []
    starts = [Trainer(run_id, rank, world_size=2) for rank in (0, 1)]
    resumed = [
        Trainer(run_id, rank, resume_step=300, layout="sharded", world_size=2) for rank in (1, 0)
    ]
    for trainer, count in zip((*starts, *resumed), (600, 300, 300, 300), strict=True):
        sampled = range(0, 300, 10) if trainer in resumed else ()
        store.ingest(trainer.batch(trainer.updates(count, sampled=sampled)))
        counted.append(store.run(run_id)[0].sampled_updates)
        assert defects(settings, run_id) == []
    assert counted == [0, 0, 0, 30]


def test_samples_wait_for_a_rank_that_appears_late(settings: Settings, store: Store) -> None:
    """A shard is missing from the samples of other ranks as soon as its rank is known, and until it arrives."""
    run_id = uuid4()
    ranks = [Trainer(run_id, rank, layout="sharded", world_size=3) for rank in range(3)]
    for trainer in ranks[:2]:
        store.ingest(trainer.batch(trainer.updates(600, sampled=range(0, 600, 10))))
    # A process's first header may precede its sharded parameters.
    early = msgspec.structs.replace(ranks[2].stream, layout="replicated")
    store.ingest(ranks[2].batch(headers=(ranks[2].attempt, early)))
    assert defects(settings, run_id) == []
    for records in ([], ranks[2].updates(300), ranks[2].updates(300, sampled=range(0, 300, 10))):
        store.ingest(ranks[2].batch(records))
        assert defects(settings, run_id) == []


def test_samples_wait_for_a_rank_that_a_resume_names_late(settings: Settings, store: Store) -> None:
    """If the first rank of a resume reports fewer ranks, its samples are parts as soon as another reports more."""
    run_id = uuid4()
    sharded: dict[str, Any] = {"layout": "sharded", "world_size": 2}
    for resume in ({}, {"resume_step": 600}):
        ranks = [Trainer(run_id, rank, **sharded, **resume) for rank in range(2)]
        ranks[0].world_size -= len(resume)
        for trainer in ranks:
            for records in ([], trainer.updates(600, sampled=range(0, 600, 10))):
                store.ingest(trainer.batch(records))
                assert defects(settings, run_id) == []


def test_a_rank_is_stored_before_its_first_shard(store: Store) -> None:
    """Rank 1 sampled before rank 0 did, and after a resume as FSDP its first batch has no sample."""
    run_id = uuid4()
    for rank in (1, 0):
        trainer = Trainer(run_id, rank, world_size=2)
        store.ingest(trainer.batch(trainer.updates(5, sampled=[0])))
    resumed = Trainer(run_id, 1, world_size=2, layout="sharded", resume_step=5)
    store.ingest(resumed.batch(resumed.updates(300)))
    assert store.parameter_series(run_id, stream=0).cells["first"].tolist() == [0]


def test_a_rank_without_news_of_others_is_not_alone(store: Store) -> None:
    """Shards of all known ranks are summed, even if the lowest rank reports a world size of one."""
    run_id = uuid4()
    ranks = [Trainer(run_id, rank, layout="sharded", world_size=rank + 1) for rank in (0, 1)]
    for trainer in ranks:
        store.ingest(trainer.batch(trainer.updates(30, sampled=(0, 10, 20))))
    with engine.reading(store._engine) as connection:
        series = read_series(connection, scalers.find(connection, run_id, None))
    assert series.on_grid.looked.tolist() == [2 * 160] * 3
    assert store.parameters(run_id).ranks == [0, 1]


def hold_parameters(
    connection: Connection, scaler: Scaler, source: StreamSource, stretch: Stretch, columns: int
) -> None:
    """Check that a rank's parameter cells in a stretch equal its merged samples, without repeated steps.

    Reading a part must give the same cells at the part's places, in its order.
    """
    of = parameter_rollups.stream_samples(connection, source)
    rows = of.rows(0, INTEGER_MAX)
    asked = connection, scaler, source.number, stretch, columns
    found = parameter_rollups.read(*asked, parameter_rollups.whole).cells
    merge = of.pyramid.layout.merge
    wanted = rows[stretch.holds(rows)]
    start = np.zeros(min(len(wanted), 1), np.int64)
    assert len(found) <= len(wanted)
    if source.sampled:
        same(merge(found, start), merge(wanted, start))
        places = range(len(of.names))[::-2]
        part = ParameterPart(places, ("looked", "on_grid_min", "norm"))
        some = parameter_rollups.read(*asked, lambda _: part)
        same(some.cells, taken(found, places, part.fields))
        assert some.names == tuple(of.names[place] for place in places)


def held(connection: Connection, scaler: Scaler, level: int) -> Cells:
    """All cells of a level."""
    series = WindowedSeries(
        connection,
        GRADIENTS,
        (scaler.run_id, scaler.number),
        lambda first, last: cells.of_series(
            read_series(connection, scaler, start=first, stop=min(last, INTEGER_MAX) + 1)
        ),
        edge=scaler.edge,
    )
    return series._read(level, 0, (1 << BITS * 6) - 1)


def test_attempts_may_tell_of_other_parameters(store: Store) -> None:
    """A parameter keeps its row by name when a later attempt has other parameters in another order."""
    first = Trainer()
    one = first.updates(3, sampled=range(3))
    store.ingest(first.batch(one))
    later = Trainer(first.run_id, resume_step=3)
    names = ("head.weight", "new.weight", "embedding.weight")
    header = replace_header(later, names)
    records = [
        later.update(gradients=statistics(3, seed=seed, on_grid=seed != 1).to_wire())
        for seed in range(2)
    ]
    store.ingest(later.batch(records, headers=(later.attempt, header)))

    found = store.parameter_series(first.run_id)
    assert found.names == ("embedding.weight", "head.weight", "new.weight")
    looked = found.cells["looked"].tolist()
    assert looked == [[80, 80, 0]] * 3 + [[80, 80, 80]] * 2
    assert found.cells["on_grid"].tolist()[3:] == [[80, 80, 80], [8, 8, 8]]


def replace_header(trainer: Trainer, names: Sequence[str]) -> wire.StreamHeader:
    """A trainer's header with other parameters."""
    parameters = tuple(wire.Parameter(name, (8, 10), "float16") for name in names)
    return msgspec.structs.replace(trainer.stream, parameters=parameters)


def test_parameters_may_join_after_the_last_sample(settings: Settings, store: Store) -> None:
    """Parameters added after the last sample do not block a later attempt, and the run verifies as sound."""
    first = Trainer()
    store.ingest(first.batch(first.updates(20, sampled=[0, 19])))
    late = wire.Parameter("late.weight", (2, 3), "float32")
    grown = msgspec.structs.replace(first.stream, parameters=(*first.stream.parameters, late))
    store.ingest(first.batch(headers=(first.attempt, grown)))
    again = Trainer(first.run_id, resume_step=10)
    store.ingest(again.batch(again.updates(20, sampled=[0, 19])))
    assert store.parameter_series(first.run_id).cells["first"].tolist() == [0, 10, 29]
    store.close()
    assert defects(settings, first.run_id) == []


def test_rollups_are_rebuilt_as_they_were(settings: Settings, store: Store) -> None:
    """A rebuild from the stored samples gives the same pages as ingest."""
    trainer = Trainer()
    steps = steps_of([(0, 40, 1), (5_000, 40, 100)])
    records = [
        trainer.update(ordinal=step, gradients=statistics(seed=step).to_wire()) for step in steps
    ]
    for first in range(0, len(records), 7):
        store.ingest(trainer.batch(records[first : first + 7]))
    pages = text(
        "SELECT 1, level, bucket, data FROM gradient_rollups UNION ALL "
        "SELECT 2, level, bucket, data FROM parameter_rollups ORDER BY 1, 2, 3"
    )
    database = create_engine(url_of(settings))
    with database.begin() as connection:
        before = connection.execute(pages).all()
        connection.execute(text("DELETE FROM gradient_rollups"))
        connection.execute(text("DELETE FROM parameter_rollups WHERE level > 0"))
        scaler = scalers.find(connection, trainer.run_id, None)
        (source,) = scaler.sources
        samples.series(connection, scaler).roll_up(0, scaler.edge - 1)
        of = parameter_rollups.stream_samples(connection, source)
        of.series.roll_up(0, source.edge - 1)
        assert connection.execute(pages).all() == before
    database.dispose()
    # The lowest level has cells where every step was sampled, and none where one in a hundred was.
    assert [row[2] for row in before if row[0] == row[1] == 1] == [0]
