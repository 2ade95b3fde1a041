"""A sample sees every run, and every pair of runs, with equal probability."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampmon.numerics.sampling_error import (
    RUN,
    grain,
    interval,
    run_counts,
    share_variance,
    standard_error,
)
from ampmon.probe.gradients import sample_runs


SAMPLE = 16_384
SEEDS = 2000
"""With this many samples, a coverage of 95 % has a standard error of half a percent."""


def test_a_small_tensor_is_seen_whole() -> None:
    """A tensor of at most the requested number of elements is seen whole and in order."""
    gradient = torch.arange(1000.0)
    for elements in (1000, 1008):
        assert torch.equal(sample_runs(gradient, elements, np.random.default_rng(0)), gradient)


@pytest.mark.parametrize("more", [1, 8, 500])
def test_a_tensor_hardly_larger_than_the_sample_is_seen_whole(more: int) -> None:
    """A tensor with a few elements more than requested is seen whole, so that its shares are exact."""
    gradient = torch.arange(float(SAMPLE + more))
    assert torch.equal(sample_runs(gradient, SAMPLE, np.random.default_rng(0)), gradient)


@given(
    rows=st.integers(1, 400),
    columns=st.integers(1, 400),
    elements=st.integers(16, 4000),
    seed=st.integers(0, 2**32),
)
def test_a_sample_is_distinct_runs_of_neighbours(
    rows: int, columns: int, elements: int, seed: int
) -> None:
    """A sample has at least the requested number of elements, in distinct whole runs of 16 neighbours."""
    gradient = torch.arange(float(rows * columns)).view(rows, columns)
    seen = sample_runs(gradient, elements, np.random.default_rng(seed))
    if seen.numel() == gradient.numel():
        return
    runs = seen.view(-1, RUN)
    assert len(runs) == -(-elements // RUN)
    assert torch.equal(runs - runs[:, :1], torch.arange(float(RUN)).expand_as(runs))
    assert len(runs[:, 0].unique()) == len(runs)
    # Only the last run may start at another place, because it ends with the tensor.
    starts = runs[:, 0]
    assert ((starts % RUN == 0) | (starts == gradient.numel() - RUN)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_is_sampled(dtype: torch.dtype) -> None:
    """Sampled values are unchanged, including those of a last run that would be short."""
    gradient = torch.linspace(-1, 1, 163).to(dtype)
    seen = torch.cat(
        [sample_runs(gradient, 160, np.random.default_rng(seed)) for seed in range(20)]
    )
    assert seen.dtype == dtype
    assert torch.equal(seen.unique(), gradient.unique())


def test_every_pair_of_runs_is_as_likely_as_any_other() -> None:
    """Over many samples every run and every pair of runs is seen equally often, including the short last run."""
    generator = np.random.default_rng(0)
    runs, wanted, samples = 30, 10, 3000
    together = np.zeros((runs, runs))
    gradient = torch.arange(runs * RUN - 5.0)
    for _ in range(samples):
        seen = -(-sample_runs(gradient, wanted * RUN, generator)[::RUN].numpy() // RUN)
        chosen = np.bincount(seen.astype(int), minlength=runs)
        together += np.outer(chosen, chosen)
    once, twice = np.diag(together), together[~np.eye(runs, dtype=bool)]
    for counts, chance in (
        (once, wanted / runs),
        (twice, wanted * (wanted - 1) / (runs * (runs - 1))),
    ):
        deviation = np.sqrt(samples * chance * (1 - chance))
        assert (abs(counts - samples * chance) < 5 * deviation).all()


def _drawn(name: str) -> torch.Tensor:
    """Return which elements of a gradient are in a class (bool), for one pattern of their places."""
    random = np.random.default_rng(7)
    member = {
        "iid": lambda: random.random((1500, 768)) < 0.03,
        "iid, half": lambda: random.random((1500, 768)) < 0.5,
        "iid, rare": lambda: random.random((1500, 768)) < 0.001,
        "iid, half of it seen": lambda: random.random(2 * SAMPLE + 5) < 0.1,
        "rows of an embedding": lambda: np.repeat(random.random((1500, 1)) < 0.3, 768, 1),
        "rows, few of them": lambda: np.repeat(random.random((20_000, 1)) < 0.02, 64, 1),
        "rows shorter than a run": lambda: np.repeat(random.random((100_000, 1)) < 0.05, 8, 1),
        "rows, each with a share": lambda: (
            random.random((6000, 192)) < random.beta(0.1, 2, (6000, 1))
        ),
        "rows by frequency": lambda: (
            random.random((20_000, 64)) < 1 / np.sqrt(np.arange(1, 20_001))[:, None]
        ),
        "dead columns": lambda: np.repeat(random.random((1, 768)) < 0.1, 1500, 0),
        "dead columns, rows of 1000": lambda: np.repeat(random.random((1, 1000)) < 0.1, 1500, 0),
        "columns, each with a share": lambda: (
            random.random((1500, 768)) < random.beta(0.3, 2, (1, 768))
        ),
        "blocks of columns": lambda: np.repeat(random.random((1500, 12)) < 0.4, 64, 1),
    }[name]()
    return torch.from_numpy(member)


SHAPES = ("iid, half of it seen", "rows by frequency", "dead columns", "columns, each with a share")
OTHER_SHAPES = (
    "iid",
    "iid, half",
    "iid, rare",
    "rows of an embedding",
    "rows, few of them",
    "rows shorter than a run",
    "rows, each with a share",
    "dead columns, rows of 1000",
    "blocks of columns",
)
"""`make test-campaigns` tests these."""


@pytest.mark.parametrize("name", SHAPES)
def test_intervals_cover_what_they_say(name: str) -> None:
    """95 % intervals of a default sample hold the true share in 93 to 97 % of samples; errors are unbiased."""
    member = _drawn(name)
    truth, numel = member.double().mean().item(), member.numel()
    generator = np.random.default_rng(3)
    gradient = member.half()
    runs = np.stack(
        [run_counts((sample_runs(gradient, SAMPLE, generator) != 0).numpy()) for _ in range(SEEDS)]
    )
    counts, squares = runs.sum(1), (runs * runs).sum(1)
    looked = np.full(SEEDS, SAMPLE)
    share, variance = counts / looked, share_variance(counts, squares, looked, np.int64(numel))
    low, high = interval(share, variance, grain(looked, np.int64(numel)))

    assert 0.93 <= ((low <= truth) & (truth <= high)).mean() <= 0.97
    assert np.sqrt(variance.mean()) == pytest.approx(share.std(), rel=0.08)
    assert share.mean() == pytest.approx(truth, abs=5 * share.std() / np.sqrt(SEEDS))
    errors = standard_error(share, variance, grain(looked, np.int64(numel)))
    assert np.median(errors) == pytest.approx(share.std(), rel=0.15)
