"""Errors of sampled gradients in the server: weights, variances, packed forms and answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ampmon import wire
from ampmon.numerics.histogram import BINS, EXPONENT_MIN, Statistics
from ampmon.numerics.sampling_error import RUN
from ampmon_server.charts import View
from ampmon_server.queries.drawing import draw
from ampmon_server.queries.sources import ChartRequest
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages import packing
from ampmon_server.store.pages.packing import Sample, Stack
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.samples import totals
from batches import Trainer, statistics


SEEDS = 2000


def sampled(zeros: np.ndarray, numel: list[int], runs: int) -> Statistics:
    """Statistics of n sampled parameters, from the zeros in each run, [n, runs]; other elements are 2^-10."""
    parameters = len(numel)
    counts = zeros.sum(1)
    looked = np.full(parameters, RUN * runs)
    histogram = np.zeros((parameters, BINS), np.int64)
    histogram[:, 30] = looked - counts
    return Statistics(
        parameters=np.arange(parameters, dtype=np.int32),
        looked=looked,
        zeros=counts,
        on_grid=looked,
        inf=np.zeros(parameters, np.int64),
        nan=np.zeros(parameters, np.int64),
        amax=np.full(parameters, 2.0**-10),
        sum_squares=(looked - counts) * 2.0**-20,
        histogram=histogram,
        run_squares=np.stack([(zeros**2).sum(1), 0 * counts, 0 * counts], axis=1),
    )


def test_a_parameter_weighs_what_it_has_of_all_elements() -> None:
    """A parameter of which one sixtieth was measured is weighted by all its elements."""
    one = statistics(2)  # 80 elements of each are sampled, 8 of them zero
    one.zeros[0], one.histogram[0, 20] = 80, 0
    one.histogram[0] = 0
    row = totals.total(Stack.of([Sample(0, 0, 1.0, one)]), np.array([80, 4800]), 80)
    of = totals.series(row).on_grid

    assert (of.elements[0], of.looked[0], of.zeros[0]) == (4880, 160, 80 + 480)
    assert of.shares()[0, 0] == pytest.approx((80 + 480) / 4880)
    assert of.sum_squares[0] == pytest.approx(one.sum_squares[0] + 60 * one.sum_squares[1])
    low, high = of.interval()
    assert low[0, 0] < of.shares()[0, 0] < high[0, 0]


def test_the_heatmap_and_the_fate_tell_the_same_share(store: Store) -> None:
    """The captions of heatmap and underflow give the same subnormal share of all elements."""
    trainer = Trainer()  # 800 elements and 80
    one = statistics(2)  # 80 of each are sampled, 72 of them not zero
    one.histogram[:] = 0
    one.histogram[0, -20 - EXPONENT_MIN] = one.histogram[1, -EXPONENT_MIN] = 72
    header = msgspec.structs.replace(trainer.stream, sample=80)
    records = [trainer.update(gradients=one.to_wire()) for _ in range(60)]
    store.ingest(trainer.batch(records, headers=(trainer.attempt, header)))

    heatmap, searched, fate = (
        draw(store, trainer.run_id, name, asked)["layout"]["meta"]["caption"]
        for name, asked in (
            ("parameters", ChartRequest(view=View(width=100))),
            ("parameters", ChartRequest(View(search="head*"))),
            ("underflow", ChartRequest()),
        )
    )
    assert ", 81.8\u202f% ± 11.9\u202f% subnormal, " in fate
    assert "In the newest 12 samples together, 81.8\u202f% of the elements are subnormal" in heatmap
    assert "In the newest sample, 0\u202f% of the elements are subnormal" in searched


def test_heatmap_and_table_tell_the_same_norm(store: Store) -> None:
    """The norms in the heatmap, of single and of rolled-up samples, are those of all elements, as in the table."""
    trainer = Trainer()
    header = msgspec.structs.replace(trainer.stream, sample=80)
    records = [trainer.update(gradients=statistics(2).to_wire()) for _ in range(60)]
    store.ingest(trainer.batch(records, headers=(trainer.attempt, header)))
    table = [row.norm for row in store.parameters(trainer.run_id).parameters]
    for stop, columns in ((3, 9), (60, 2)):
        cells = store.parameter_series(trainer.run_id, Stretch(stop=stop), columns=columns).cells
        assert len(cells)
        assert cells["norm"] == pytest.approx(np.tile(table, (len(cells), 1)))


def test_what_was_seen_whole_has_no_error() -> None:
    """Shares of fully measured and of sparse gradients are exact, and so are their intervals."""
    stack = Stack.of([Sample(0, 0, 1.0, statistics(2))])
    for numel, sample in (([80, 80], 80), ([80, 4800], None), ([80, 4800], 1000)):
        of = totals.series(totals.total(stack, np.array(numel), sample)).on_grid
        assert of.elements[0] == 160
        assert of.errors().max() == 0
        assert (np.stack(of.interval()) == of.shares()).all()


def test_intervals_of_totals_cover_what_they_say() -> None:
    """Nominal 95 % intervals of totals hold the true share in 93 to 97 % of samples."""
    random = np.random.default_rng(5)
    runs, sizes = 256, [2000, 40_000, 5000]
    populations = [
        random.binomial(RUN, 0.03, sizes[0]),
        RUN * (random.random(sizes[1]) < 0.2),
        random.binomial(RUN, random.beta(0.3, 2, sizes[2])),
    ]
    truth = sum(each.sum() for each in populations) / (RUN * sum(sizes))
    numel = [RUN * size for size in sizes]
    samples = [
        Sample(
            seed,
            seed,
            1.0,
            sampled(
                np.stack(
                    [
                        random.choice(each, runs, replace=False, shuffle=False)
                        for each in populations
                    ]
                ),
                numel,
                runs,
            ),
        )
        for seed in range(SEEDS)
    ]
    rows = totals.total(Stack.of(samples), np.array(numel), RUN * runs)
    of = totals.series(rows).on_grid
    low, high = (end[:, 0] for end in of.interval())

    assert 0.93 <= ((low <= truth) & (truth <= high)).mean() <= 0.97
    share = of.shares()[:, 0]
    assert share.mean() == pytest.approx(truth, abs=4 * share.std() / np.sqrt(SEEDS))
    assert np.median(of.errors()[:, 0]) == pytest.approx(share.std(), rel=0.08)


def test_what_is_packed_otherwise_is_refused() -> None:
    """Blocks and totals that begin with another byte than packed ones are refused."""
    stack = Stack.of([Sample(0, 0, 1.0, statistics(2))])
    rows = totals.total(stack, np.full(2, 80), None)
    block, *others = packing.block_to_bytes(stack)
    for data, read in (
        (block, lambda data: packing.stack_from_bytes([data, *others])),
        (totals.samples_to_bytes(rows), lambda data: totals.samples_from_bytes([data])),
    ):
        assert len(read(data)) == 1
        with pytest.raises(Damaged, match="packed data is damaged"):
            read(b"\x7f" + data[1:])


@pytest.mark.parametrize("squares_known", [True, False])
def test_summaries_and_calls_tell_the_error(tmp_path: Path, squares_known: bool) -> None:
    """The run, each update and each parameter have a standard error, larger if squares are unknown."""
    trainer = Trainer()
    zeros = np.random.default_rng(0).binomial(RUN, 0.25, (2, 5))
    one = sampled(zeros, [800, 80], 5)
    if not squares_known:
        one = replace(one, run_squares=np.zeros((2, 3), np.int64))
    header = msgspec.structs.replace(trainer.stream, sample=RUN * 5)
    store = Store.open(Settings(data_directory=tmp_path))
    store.ingest(
        trainer.batch([trainer.update(gradients=one.to_wire())], headers=(trainer.attempt, header))
    )
    (summary,) = store.runs().rows
    columns = store.updates(trainer.run_id, stream=None, start=0, stop=9, limit=9).columns
    rows = store.parameters(trainer.run_id).parameters
    store.close()

    assert summary.zero_fraction == columns["zero_fraction"][0]
    assert summary.zero_fraction_error == columns["zero_fraction_error"][0] > 0
    assert (summary.zero_fraction_error > 0.1) != squares_known
    assert [row.sampled for row in rows] == [True, False]
    assert rows[0].zero_fraction == rows[0].zeros / 80
    assert rows[0].zero_fraction_error > 0 == rows[1].zero_fraction_error
    # A tenth of the elements was sampled, so the norm is that of ten times the squares.
    assert rows[0].norm == pytest.approx(np.sqrt(10 * one.sum_squares[0]) / 1024)


@pytest.mark.parametrize("squares", [[[1, 0, 0]], [[8 * 16 + 1, 0, 0]], [[-8, 0, 0]], [[0, 1, 0]]])
def test_squares_that_cannot_be_are_refused(squares: list[list[int]]) -> None:
    """`run_squares` must be between a count and 16 times the count."""
    one = statistics(1)
    wrong = replace(one, run_squares=np.array(squares)).to_wire()
    with pytest.raises(ValueError, match="run_squares"):
        Statistics.from_wire(wrong)
    right = replace(one, run_squares=np.array([[8 * 16, 0, 0]])).to_wire()
    assert Statistics.from_wire(right).run_squares.tolist() == [[128, 0, 0]]


def test_squares_cost_nothing_where_all_was_seen() -> None:
    """A record of every element carries no squares, and one without the field is read."""
    packed = wire.encode(Trainer().update(gradients=statistics(2).to_wire()))
    assert b"run_squares" not in packed
    update = wire.decode(packed)
    assert isinstance(update, wire.Update)
    assert update.gradients is not None
    assert not Statistics.from_wire(update.gradients).run_squares.any()
