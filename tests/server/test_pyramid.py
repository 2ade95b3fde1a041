"""Levels of cells in a table, checked against the rows that they summarize."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, insert, select

from ampmon_server.model.aggregates.merging import FLOAT, INT, Cells, Choice, Layout, starts_of
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages.pyramid import BITS, LEVELS, Pyramid
from ampmon_server.store.pages.windows import Stretch, WindowedSeries
from ampmon_server.store.schema.tables import metadata, rollups


LAYOUT = Layout(
    first={"first": INT, "opening": FLOAT},
    last={"last": INT},
    add={"n": INT, "total": FLOAT, "parts": (INT, 3)},
    least={"time_min": INT},
    greatest={"time_max": INT},
    choices=(Choice("greatest", "peak", FLOAT, {"peak_step": INT}),),
)
PYRAMID = Pyramid(rollups, LAYOUT)
KEY = (b"r" * 16, 3)


def rows_of(steps: list[int]) -> Cells:
    """Distinct rows: values and times follow from the step, and times are not always in order."""
    at = np.array(steps, np.int64)
    cells = np.zeros(len(at), LAYOUT.dtype)
    cells["first"] = cells["last"] = cells["peak_step"] = at
    cells["opening"] = cells["total"] = at % 97
    cells["peak"] = np.where(at % 5 == 0, np.nan, at % 89)
    cells["n"] = 1
    cells["parts"] = np.stack([at % 2, at % 3, at % 7], 1)
    cells["time_min"] = cells["time_max"] = 10 * at - (at % 11 == 0) * 500
    return cells


def between(rows: Cells) -> Callable[[int, int], Cells]:
    """Return a function that reads rows by step."""
    return lambda first, last: rows[(rows["first"] >= first) & (rows["first"] <= last)]


@pytest.fixture
def connection() -> Iterator[Connection]:
    """A database with empty tables."""
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def fill(connection: Connection, rows: Cells, cuts: list[int]) -> None:
    """Add rows in parts; after each part, make the cells of its steps from all rows so far."""
    edges = [0, *sorted({cut % (len(rows) + 1) for cut in cuts}), len(rows)]
    for first, last in itertools.pairwise(edges):
        if first < last:
            new = rows[first:last]["first"]
            held = between(np.sort(rows[:last], order="first"))
            series = WindowedSeries(connection, PYRAMID, KEY, held)
            series.roll_up(int(new.min()), int(new.max()))


def same(cells: Cells, rows: Cells) -> None:
    """Check that cells agree with the rows that they cover."""
    assert cells["n"].sum() == len(rows)
    assert cells["parts"].sum(0).tolist() == rows["parts"].sum(0).tolist()
    assert cells["total"].sum() == rows["total"].sum()
    for cell in cells:
        under = rows[(rows["first"] >= cell["first"]) & (rows["first"] <= cell["last"])]
        assert (under["first"][0], under["first"][-1]) == (cell["first"], cell["last"])
        assert (len(under), under["opening"][0]) == (cell["n"], cell["opening"])
        assert (under["time_min"].min(), under["time_max"].max()) == (
            cell["time_min"],
            cell["time_max"],
        )
        if np.isnan(under["peak"]).all():
            assert np.isnan(cell["peak"])
        else:
            assert cell["peak"] == np.nanmax(under["peak"])
            assert cell["peak_step"] == under["first"][np.nanargmax(under["peak"])]


STEPS = st.lists(
    st.one_of(st.integers(0, 600), st.integers(16**3 - 40, 16**3 + 40), st.integers(0, 16**6)),
    min_size=1,
    max_size=120,
    unique=True,
)


@settings(max_examples=10)
@given(steps=STEPS, cuts=st.lists(st.integers(0, 200), max_size=4), dense=st.booleans())
def test_every_level_says_what_its_rows_do(steps: list[int], cuts: list[int], dense: bool) -> None:
    """Each cell of every level agrees with its rows, in any order of arrival."""
    rows = rows_of(list(range(steps[0] % 900, steps[0] % 900 + 500)) if dense else steps)
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.connect() as opened:
        fill(opened, rows, cuts)
        for level in LEVELS:
            cells = PYRAMID.read(opened, KEY, level, (0, 2**53 >> BITS * level))
            assert np.unique(cells["first"] >> BITS * level).size == len(cells)
            same(cells, np.sort(rows, order="first"))
    engine.dispose()


@settings(max_examples=10)
@given(
    length=st.integers(1, 5000),
    gap=st.sampled_from([1, 1, 7, 300]),
    by=st.sampled_from(["step", "time"]),
    ends=st.tuples(st.floats(-0.1, 1.1), st.floats(-0.1, 1.1)),
    columns=st.sampled_from([1, 10, 100, 1000]),
)
def test_a_window_counts_exactly_and_reads_little(
    length: int, gap: int, by: str, ends: tuple[float, float], columns: int
) -> None:
    """A window by step or by time counts exactly its rows, in a bounded number of cells."""
    rows = rows_of([step * gap for step in range(length)])
    low, high = sorted(round(end * length * gap * (10 if by == "time" else 1)) for end in ends)
    stretch = Stretch(low, high + 1, by)
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.connect() as opened:
        fill(opened, rows, [])
        cells = WindowedSeries(opened, PYRAMID, KEY, between(rows)).window(stretch, columns)
    engine.dispose()
    x = rows["time_min"] if by == "time" else rows["first"]
    inside = rows[(x >= low) & (x <= high)]
    assert cells["n"].sum() == len(inside)
    assert cells["total"].sum() == inside["total"].sum()
    assert (np.diff(cells["first"]) > 0).all()
    assert len(cells) <= 4 * columns + 2 * 15 * 4 + 200 * (by == "time")
    assert len(cells) == len(inside) or 4 * len(cells) >= columns


def test_cells_without_rows_are_taken_whole_where_they_begin(connection: Connection) -> None:
    """Where rows are pruned, a cell cut by a window counts where it begins, so windows add up."""
    rows = rows_of(list(range(100)))
    fill(connection, rows, [])
    kept = WindowedSeries(connection, PYRAMID, KEY, between(rows[64:]), rows_from=64)
    counts = [
        kept.window(Stretch(*ends), 1000)["n"].sum() for ends in ((0, 40), (40, 70), (70, 99))
    ]
    assert counts == [48, 22, 29]


def test_putting_less_takes_away(connection: Connection) -> None:
    """Cells that are not put again are removed, and so are pages left empty."""
    rows = rows_of([3, 400, 70_000])
    fill(connection, rows, [])
    WindowedSeries(connection, PYRAMID, KEY, between(rows_of([5]))).roll_up(0, 70_000)
    assert len(connection.execute(select(rollups.c.level)).all()) == len(LEVELS)
    assert PYRAMID.read(connection, KEY, 5, (0, 0))["first"].tolist() == [5]


def test_a_damaged_page_is_reported(connection: Connection) -> None:
    """A damaged page raises an error that names its table."""
    page = bytearray(PYRAMID.pack(rows_of([1, 2, 3])))
    page[-6] ^= 1
    connection.execute(
        insert(rollups).values(run_id=KEY[0], stream=3, level=1, bucket=0, data=bytes(page))
    )
    with pytest.raises(Damaged, match="rollups is damaged"):
        PYRAMID.read(connection, KEY, 1, (0, 9))


def test_of_equal_extremes_the_earliest_is_chosen() -> None:
    """Of equal extremes, the earliest one's step is kept."""
    rows = rows_of([1, 2, 3, 4])
    rows["peak"] = [7.0, 9.0, 9.0, np.nan]
    assert LAYOUT.merge(rows, starts_of(np.zeros(4, np.int64)))["peak_step"].tolist() == [2]
