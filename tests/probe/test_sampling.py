"""Which elements a sample sees: any as likely as another, in runs, without favouring a column."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampmon.histogram import RUN
from ampmon.probe.sampling import sample_runs


def test_a_small_tensor_is_seen_whole() -> None:
    """At most as many elements as asked for: all are looked at, whatever their number."""
    gradient = torch.arange(1000.0)
    assert torch.equal(sample_runs(gradient, 1008, random.Random(0)), gradient)


@given(
    rows=st.integers(1, 400),
    columns=st.integers(1, 400),
    elements=st.integers(16, 4000),
    seed=st.integers(0, 2**32),
)
def test_a_sample_is_distinct_runs_of_neighbours(
    rows: int, columns: int, elements: int, seed: int
) -> None:
    """A sample has the number of elements asked for, in whole runs of 16 neighbours, none of them twice."""
    gradient = torch.arange(float(rows * columns)).view(rows, columns)
    seen = sample_runs(gradient, elements, random.Random(seed))
    if seen.numel() == gradient.numel():
        return
    runs = seen.view(-1, RUN)
    assert len(runs) == max(elements // RUN, 1)
    assert torch.equal(runs - runs[:, :1], torch.arange(float(RUN)).expand_as(runs))
    assert len(runs[:, 0].unique()) == len(runs)


def test_every_run_is_as_likely_as_any_other() -> None:
    """Over many samples each run of a tensor is seen equally often, the first and the last included."""
    generator = random.Random(0)
    runs, wanted, samples = 101, 10, 5000
    counts = torch.zeros(runs)
    for _ in range(samples):
        counts[
            (
                sample_runs(torch.arange(float(runs * RUN)), wanted * RUN, generator)[::RUN] / RUN
            ).long()
        ] += 1
    expected = samples * wanted / runs
    assert ((counts - expected).abs() < 6 * expected**0.5).all()


@pytest.mark.parametrize("columns", [16, 64, 768, 1000, 3072])
def test_one_sample_sees_every_part_of_a_row(columns: int) -> None:
    """With rows of common lengths a single sample reaches all sixteenths of the columns, not the same ones each row."""
    gradient = torch.arange(float(columns)).repeat(4096, 1)
    seen = sample_runs(gradient, 16_384, random.Random(3))
    assert len((seen / columns * RUN).long().unique()) == RUN
