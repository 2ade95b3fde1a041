"""Cells of updates that ingest keeps, checked against an independent reading of all held rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from ampmon import wire
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import EVENTS, MOVES
from ampmon_server.store import Store
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.pages.pages import PAGE_BITS
from ampmon_server.store.pages.pyramid import BITS, LEVELS
from ampmon_server.store.pages.windows import Stretch, WindowedSeries
from ampmon_server.store.schema.tables import headers, streams
from ampmon_server.store.schema.tables import rollups as pages
from ampmon_server.store.streams import scalers
from ampmon_server.store.updates import updates
from ampmon_server.store.updates.updates import PAGES
from batches import START, Trainer, statistics


SOME = settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])

_STEADY, _SKIPPED, _SAMPLED, _LOST = range(4)
_STATISTICS = statistics().to_wire()


class Start(NamedTuple):
    """A process start on a rank: where it resumes, each update's fate, and its clock's error in microseconds."""

    rank: int
    scaler: str
    resume_step: int
    fates: list[int]
    clock: int
    layout: wire.Layout


def _fates(*rare: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from([_STEADY] * 9 + list(rare)), min_size=1, max_size=70)


STARTS = st.lists(
    st.builds(
        Start,
        st.integers(0, 2),
        st.sampled_from(["scaler"] * 7 + ["discriminator"]),
        st.sampled_from([0] * 5 + [5, 16, 250, 4090]),
        st.one_of(_fates(), _fates(_SKIPPED, _SAMPLED), _fates(_SKIPPED, _SAMPLED, _LOST)),
        st.sampled_from([0, 0, -10_000_000]),
        st.sampled_from(["replicated", "replicated", "sharded"]),
    ),
    min_size=2,
    max_size=5,
)


def play(store: Store, run_id: UUID, starts: Sequence[Start], order: random.Random) -> None:
    """Send what the processes of a run recorded, in batches in any order, some of them twice."""
    batches = []
    for start in starts:
        trainer = Trainer(
            run_id, start.rank, start.scaler, start.resume_step, start.layout, world_size=3
        )
        store.ingest(trainer.batch())  # the server numbers attempts in order of arrival
        recorded = [_update(trainer, start, fate, order) for fate in start.fates]
        kept = [each for each, fate in zip(recorded, start.fates, strict=True) if fate != _LOST]
        cut = order.choice([1, 7, 40])
        batches += [trainer.batch(kept[at : at + cut]) for at in range(0, len(kept), cut)]
    if order.random() < 0.5:
        order.shuffle(batches)
    for batch in [*batches, *order.sample(batches, len(batches) // 3)]:
        store.ingest(batch)


def _update(trainer: Trainer, start: Start, fate: int, order: random.Random) -> wire.Update:
    made = trainer.update(
        skipped=fate == _SKIPPED,
        scale=order.choice([1024.0] * 4 + [2.0**-140, 0.0, -1.0, np.inf, np.nan, 65536.0]),
        gradients=_STATISTICS if fate == _SAMPLED else None,
        event=order.choice(["steady"] * 6 + list(EVENTS)),
        duration=order.choice([None, 1000.0, 7.5]),
        memory_peak=order.choice([None, 2**30, 5]),
    )
    return msgspec.structs.replace(made, time=made.time + start.clock)


class Truth(NamedTuple):
    """What is held of one step of a scaler."""

    step: int
    time: int
    scale: float
    after: float
    event: int
    skipped: bool
    sampled: bool


def truth(store: Store, run_id: UUID) -> dict[str, list[Truth]]:
    """By scaler, each step once: the newest attempt of each rank, and of those the lowest rank."""
    with engine.reading(store._engine) as connection:
        listed = connection.execute(
            select(streams.c.stream, streams.c.rank, streams.c.scaler).where(
                streams.c.run_id == run_id.bytes, streams.c.scaler != ""
            )
        ).all()
        layouts = connection.execute(
            select(headers.c.stream, headers.c.attempt).where(
                headers.c.run_id == run_id.bytes, headers.c.layout == "sharded"
            )
        ).all()
        rows = [
            (number, row)
            for number, _, _ in listed
            for row in PAGES.read(connection, (run_id.bytes, number), 0, INTEGER_MAX)
        ]
    of = {number: (rank, scaler) for number, rank, scaler in listed}
    sharded = {(of[number][1], attempt) for number, attempt in layouts}
    newest = {(*of[number], int(row["step"])): row for number, row in rows}  # later attempts win
    found: dict[str, list[Truth]] = {scaler: [] for _, scaler in of.values()}
    for scaler, steps in found.items():
        for step in sorted({key[2] for key in newest if key[1] == scaler}):
            held = [newest[key] for key in sorted(newest) if key[1:] == (scaler, step)]
            values = [held[0][name].item() for name in ("time", "scale", "scale_after", "event")]
            parts = [(scaler, int(row["attempt"])) in sharded for row in held]
            whole = [row for row, is_part in zip(held, parts, strict=True) if not is_part]
            sampled = held[:1] if parts[0] else whole
            steps.append(
                Truth(
                    step,
                    *values,
                    any(row["skipped"] for row in held),
                    any(row["sampled"] for row in sampled),
                )
            )
    return found


def check_cell(cell: Any, rows: Sequence[Truth]) -> None:
    """Check that a cell agrees with its rows."""
    assert (cell["first"], cell["last"], cell["n"]) == (rows[0].step, rows[-1].step, len(rows))
    assert cell["skipped"] == sum(row.skipped for row in rows)
    assert cell["sampled"] == sum(row.sampled for row in rows)
    times = [row.time for row in rows]
    assert (cell["time_min"], cell["time_max"]) == (min(times), max(times))
    assert (cell["time_first"], cell["time_last"]) == (times[0], times[-1])
    np.testing.assert_equal(
        (cell["scale_first"], cell["scale_last"], cell["after_last"]),
        (rows[0].scale, rows[-1].scale, rows[-1].after),
    )
    usable = [row for row in rows if row.scale >= 0]
    assert cell["unusable"] == len(rows) - len(usable)
    for name, extreme in (("scale_min", min), ("scale_max", max)):
        if usable:
            best = extreme(usable, key=lambda row: row.scale)
            assert (cell[name], cell[f"{name}_step"], cell[f"{name}_time"]) == (
                best.scale,
                best.step,
                best.time,
            )
    skips = [row for row in rows if row.skipped]
    if skips:
        assert (cell["skip_first"], cell["skip_last"]) == (skips[0].step, skips[-1].step)
        assert cell["skip_time"] == skips[-1].time
    for kind, event in enumerate(MOVES):
        moved = [row for row in rows if EVENTS[row.event] == event]
        assert cell["moves"][kind] == len(moved)
        if moved:
            assert (cell["move_first"][kind], cell["move_last"][kind]) == (
                moved[0].step,
                moved[-1].step,
            )
            values = [cell[f"move_{name}"][kind] for name in ("time", "scale", "after")]
            np.testing.assert_equal(values, [moved[-1].time, moved[-1].scale, moved[-1].after])


def of_scaler(store: Store, run_id: UUID, name: str, read: Callable[..., Cells], *args: Any) -> Any:
    """Call ``read`` with a connection and a scaler of a run."""
    with engine.reading(store._engine) as connection:
        known = {each.name: each for each in scalers.scalers_of(connection, run_id.bytes)}
        return read(connection, known[name], *args)


def _level(connection: Any, scaler: scalers.Scaler, level: int) -> Cells:
    key = (scaler.run_id, scaler.number)
    return updates.UPDATES.read(connection, key, level, (0, 2**53 >> BITS * level))


WINDOWS = st.lists(
    st.tuples(
        st.sampled_from(["step", "time"]),
        st.tuples(st.integers(0, 4200), st.integers(0, 4200)),
        st.sampled_from([2, 10, 1000]),
    ),
    min_size=2,
    max_size=2,
)
"""An axis, both ends in updates, and a number of columns."""


@SOME
@given(starts=STARTS, seed=st.integers(0, 2**16), windows=WINDOWS)
@example(
    starts=[
        Start(0, "scaler", 0, [_STEADY] * 13, 0, "replicated"),
        Start(0, "scaler", 0, [_STEADY] * 4, 0, "sharded"),
        Start(0, "scaler", 0, [_STEADY] * 6, 0, "replicated"),
        Start(2, "scaler", 0, [_STEADY] * 4 + [_SAMPLED], 0, "replicated"),
    ],
    seed=0,
    windows=[],
)
def test_cells_are_those_of_the_rows_that_are_not_superseded(
    store: Store,
    starts: list[Start],
    seed: int,
    windows: list[tuple[str, tuple[int, int], int]],
) -> None:
    """Totals, levels, windows and rebuilt pages agree with the rows, for any attempts, losses and resends."""
    run_id = uuid4()
    play(store, run_id, starts, random.Random(seed))
    held = truth(store, run_id)

    check_totals(store, run_id, held)
    for name, rows in held.items():
        edge = rows[-1].step >> PAGE_BITS << PAGE_BITS if rows else 0  # all were lost
        for level in LEVELS:
            cells = of_scaler(store, run_id, name, _level, level)
            check_level(cells, [row for row in rows if row.step < edge], level)
        for by, ends, columns in windows:
            low, high = sorted(ends)
            if by == "time":
                low, high = START + low * 50_000, START + high * 50_000
            stretch = Stretch(low, high + 1, by)
            cells = of_scaler(store, run_id, name, updates.window, stretch, columns)
            check_window(
                cells,
                [row for row in rows if low <= (row.time if by == "time" else row.step) <= high],
            )
    check_rebuilt(store, run_id)
    check_totals(store, run_id, held)


def check_totals(store: Store, run_id: UUID, held: dict[str, list[Truth]]) -> None:
    """Check that the summary of a run is the sum of its rows."""
    summary = store.run(run_id)[0]
    assert summary.updates == sum(len(rows) for rows in held.values())
    assert summary.skipped == sum(row.skipped for rows in held.values() for row in rows)
    assert summary.sampled_updates == sum(row.sampled for rows in held.values() for row in rows)


def check_level(cells: Cells, rows: Sequence[Truth], level: int) -> None:
    """Check that a level has one correct cell for each bucket with rows, and no other."""
    by_cell: dict[int, list[Truth]] = {}
    for row in rows:
        by_cell.setdefault(row.step >> BITS * level, []).append(row)
    assert (cells["first"] >> BITS * level).tolist() == sorted(by_cell)
    for cell in cells:
        check_cell(cell, by_cell[int(cell["first"]) >> BITS * level])


def check_window(cells: Cells, inside: Sequence[Truth]) -> None:
    """Check that the cells of a window count exactly its rows and keep their extremes."""
    assert cells["n"].sum() == len(inside)
    assert cells["skipped"].sum() == sum(row.skipped for row in inside)
    assert cells["moves"].sum() == sum(row.event > 0 for row in inside)
    usable = [row.scale for row in inside if row.scale >= 0]
    if usable:
        assert np.nanmin(cells["scale_min"]) == min(usable)
        assert np.nanmax(cells["scale_max"]) == max(usable)


def check_rebuilt(store: Store, run_id: UUID) -> None:
    """Delete pages, rebuild them from the rows, and check that the pages are equal byte for byte."""
    kept = select(pages).where(pages.c.run_id == run_id.bytes).order_by(*pages.primary_key)
    with store._engine.begin() as connection:
        before = connection.execute(kept).all()
        connection.execute(delete(pages).where(pages.c.run_id == run_id.bytes))
        for scaler in scalers.scalers_of(connection, run_id.bytes):
            updates.series(connection, scaler).roll_up(0, scaler.edge - 1)
        assert connection.execute(kept).all() == before


def test_other_ranks_that_add_nothing_write_no_cell(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A higher rank's updates of steps already known write no cell, except for a skip."""
    run_id = uuid4()
    ranks = [Trainer(run_id, rank, world_size=3) for rank in range(3)]
    put: list[object] = []
    kept = WindowedSeries.roll_up

    def counted(*args: Any) -> None:
        put.append(args)
        kept(*args)

    monkeypatch.setattr(WindowedSeries, "roll_up", counted)
    for trainer, count in zip(ranks, (601, 300, 300), strict=True):
        store.ingest(trainer.batch(trainer.updates(count)))
    assert len(put) == 1
    store.ingest(ranks[2].batch(ranks[2].updates(1, skipped=[0])))
    assert len(put) == 2
    assert (store.run(run_id)[0].updates, store.run(run_id)[0].skipped) == (601, 1)
