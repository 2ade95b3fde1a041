"""Where the loss of a run departs from its baseline's band."""

from __future__ import annotations

import numpy as np
import pytest

import made_series as made
from ampmon_server.model.aggregates.departure import (
    COLUMNS,
    LEAST,
    SMOOTH,
    Departure,
    band,
    departure,
)
from ampmon_server.model.aggregates.merging import Cells, starts_of
from ampmon_server.model.aggregates.scalars import merge


PAIRS = 40
SIGMA = 0.05


def _noise(seed: np.random.Generator, n: int, kind: str) -> np.ndarray:
    """Noise of variance 1: normal, heavy-tailed, or with a correlation of 0.5 between neighbours."""
    if kind == "heavy":
        return np.asarray(seed.standard_t(3, n) / np.sqrt(3))
    noise = seed.normal(size=n)
    if kind == "passed on":
        for step in range(1, n):
            noise[step] = noise[step - 1] / 2 + noise[step] * np.sqrt(0.75)
    return np.asarray(noise)


def _loss(
    seed: np.random.Generator, n: int, kind: str = "normal", sigma: float = SIGMA
) -> np.ndarray:
    """A loss that falls steeply, then slowly, with proportional noise."""
    step = np.arange(n)
    fall = 0.5 + 3 * np.exp(-8 * step / n) + 2 * np.exp(-50 * step / n)
    return np.asarray(fall * (1 + sigma * _noise(seed, n, kind)))


def _cells(values: np.ndarray, every: int = 1) -> Cells:
    step = np.arange(len(values)) * every
    return made.logged(step, made.START + step, values)


@pytest.mark.parametrize("kind", ["normal", "heavy", "passed on"])
@pytest.mark.parametrize("n", [60, 250, 2000])
@pytest.mark.parametrize("sigma", [0.001, SIGMA])
def test_runs_that_differ_in_noise_alone_are_rarely_distinguished(
    kind: str, n: int, sigma: float
) -> None:
    """Of 40 pairs of runs that differ only in their seed, at most one departs."""
    seed = np.random.default_rng(n)
    left = sum(
        isinstance(
            departure(
                _cells(_loss(seed, n, kind, sigma)),
                _cells(_loss(seed, n, kind, sigma)),
            ),
            Departure,
        )
        for _ in range(PAIRS)
    )
    assert left <= 0.03 * PAIRS


@pytest.mark.parametrize(("factor", "side"), [(1.25, "above"), (0.75, "below")])
@pytest.mark.parametrize("span", [1, 16])
def test_a_loss_that_moves_leaves_the_band_there(factor: float, side: str, span: int) -> None:
    """A shift of five deviations is found within one smoothing window, from single values or cells."""
    seed = np.random.default_rng(1)
    n = 250 * span
    baseline, run = (_loss(seed, n, sigma=SIGMA * np.sqrt(span)) for _ in "br")
    run[n // 2 :] *= factor
    cells = [merge(each, starts_of(each["first"] // span)) for each in map(_cells, (baseline, run))]
    found = departure(*cells)
    assert isinstance(found, Departure)
    assert found.side == side
    assert abs(found.step - n // 2) <= SMOOTH * span
    assert found.time == made.START + found.step
    assert found.until == n - 1


def test_a_loss_that_is_not_finite_is_above_the_band() -> None:
    """A loss departs above the band where it stays NaN; single infinite values are no departure."""
    seed = np.random.default_rng(2)
    baseline, run = _loss(seed, 250), _loss(seed, 250)
    run[[20, 90]] = np.inf
    assert departure(_cells(baseline), _cells(run)) == 249
    run[150:] = np.nan
    found = departure(_cells(baseline), _cells(run))
    assert isinstance(found, Departure)
    assert (found.side, abs(found.step - 150) <= SMOOTH // 2) == ("above", True)
    assert departure(_cells(run), _cells(baseline)) == 149  # a diverged baseline cannot be compared


def test_a_loss_that_explodes_leaves_where_it_begins_to() -> None:
    """The growing noise of an exploding loss does not widen the band."""
    seed = np.random.default_rng(5)
    baseline, run = _loss(seed, 250), _loss(seed, 250)
    run[150:] *= np.exp(0.2 * np.arange(100))
    found = departure(_cells(baseline), _cells(run))
    assert isinstance(found, Departure)
    assert 140 <= found.step <= 155


def test_runs_of_other_lengths_and_intervals_are_compared_where_both_are() -> None:
    """Runs are compared over the steps that both have, at any logging interval; too few values give None."""
    seed = np.random.default_rng(3)
    baseline = _loss(seed, 2000)
    rarely = _loss(seed, 2000)[: 10 * 100 : 10]
    assert departure(_cells(baseline), _cells(rarely, every=10)) == 990
    assert departure(_cells(baseline), _cells(rarely[: LEAST - 1], every=10)) is None
    assert departure(_cells(baseline), _cells(rarely[:0])) is None


def test_the_band_holds_the_baseline() -> None:
    """The band has at most COLUMNS cells and contains over 90 % of the baseline's values."""
    cells = _cells(_loss(np.random.default_rng(4), 2000))
    found = band(cells)
    assert found is not None
    assert len(found.cells) <= COLUMNS
    values = found.cells["sum"] / found.cells["n"]
    assert np.mean((values > found.low) & (values < found.high)) > 0.9
    assert band(cells[: LEAST - 1]) is None
