"""Telling zeros that fp16 flushed from structural zeros by changes of the scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ampmon_server.analysis.flushed import flushed_in
from ampmon_server.model.series import take
from campaigns.policy.gradients import samples, sparse, underflow_network


SPARSE = sparse()

TRUE = {0: 23.990, 2: 14.131, 4: 7.267, 6: 3.245, 8: 1.284, 10: 0.444, 12: 0.137}
"""Percent flushed of `sparse` at each power of two, with torch 2.13 on a CPU. 30 % are zero at any scale."""
ZEROS = {0: 53.91, 2: 44.05, 4: 37.19, 6: 33.17, 8: 31.20, 10: 30.36, 12: 30.06}
SUBNORMAL = {0: 44.55, 2: 51.86, 4: 53.73, 6: 49.63, 8: 40.62, 10: 29.36, 12: 18.57}


def test_the_table_of_structural_zeros() -> None:
    """As the scale grows, the share of zeros falls by the flushed share, and the subnormal share follows the table."""
    seen = samples(SPARSE, list(TRUE)).on_grid
    zeros, subnormal = 100 * seen.zeros / 1e6, 100 * seen.classes().subnormal / 1e6
    assert zeros.tolist() == pytest.approx(list(ZEROS.values()), abs=0.006)
    assert subnormal.tolist() == pytest.approx(list(SUBNORMAL.values()), abs=0.006)
    fallen = [9.859, 6.864, 4.022, 1.961, 0.840, 0.307]
    assert (-np.diff(zeros)).tolist() == pytest.approx(fallen, abs=0.001)


@pytest.mark.parametrize("top", [4, 6, 8, 10, 12])
def test_what_is_flushed_at_the_largest_scale_is_estimated(top: int) -> None:
    """A run that has grown to a scale estimates the share still flushed there to 10 %, within its bounds."""
    found = flushed_in(samples(SPARSE, range(0, top + 1, 2)))
    assert found is not None
    assert found.experiments == top // 2
    assert found.low <= TRUE[top] / 100 <= found.high
    assert found.estimate == pytest.approx(TRUE[top] / 100, rel=0.1)
    assert found.structural == pytest.approx(0.3, abs=0.01)


def test_what_a_smaller_scale_flushes_is_seen() -> None:
    """After a fall from 2**12 to 2**6, nearly all of what is flushed now was seen as non-zero before."""
    found = flushed_in(samples(SPARSE, [4, 8, 12, 11, 10, 9, 8, 7, 6]))
    assert found is not None
    assert found.seen == pytest.approx((TRUE[6] - TRUE[12]) / 100, abs=2e-4)
    assert found.low <= TRUE[6] / 100 <= found.high
    assert found.high - found.low < 0.002


@pytest.mark.parametrize("levels", [[0, 2, 4, 0], [2, 4, 6, 8, 2], [6, 4, 2, 0]])
def test_a_real_network_is_bounded(levels: list[int]) -> None:
    """For a real fp16 backward pass without structural zeros, the bounds contain the share that was flushed."""
    gradient = underflow_network()
    found = flushed_in(samples(gradient, levels))
    true = float((gradient(2.0 ** levels[-1]) == 0).float().mean())
    assert found is not None
    assert found.low <= true <= found.high + 3e-4  # plus what was flushed upstream
    assert found.low >= true / 2


def test_zeros_that_do_not_move_are_structural() -> None:
    """If nothing is flushed, the lower bound is zero and all zeros are structural."""
    held = SPARSE(2.0**10)
    found = flushed_in(samples(lambda scale: held * scale, [0, 1, 2, 1]))
    assert found is not None
    assert found.low < 1e-5
    assert found.structural == pytest.approx(0.3036, abs=0.001)


def test_drift_of_the_data_is_in_the_error() -> None:
    """If the share of zeros drifts at a constant scale, the error grows and the lower bound falls."""
    seen = samples(SPARSE, [10, 10, 10, 10, 9, 9, 9, 9])
    calm = flushed_in(seen)
    seen.on_grid.zeros[:] += np.array([0, 40, -30, 20, 10, -50, 30, 0]) * 1000
    wandering = flushed_in(seen)
    assert calm is not None
    assert wandering is not None
    assert wandering.error > calm.error + 0.01
    assert wandering.low < calm.low / 2


def test_without_a_change_of_scale_there_is_nothing_to_tell() -> None:
    """A scale that never changed, or a single sample, gives no estimate."""
    assert flushed_in(samples(SPARSE, [8, 8, 8])) is None
    assert flushed_in(take(samples(SPARSE, [8, 9]), np.array([0]))) is None


def small_layer(scale: float) -> torch.Tensor:
    """Of 2410 elements, 300 are small: at scale 2**6, counts of 54, 42, 75 and so on in fp16's lowest exponents."""
    counts = {0.3: 14, 1: 54, 2.5: 42, 5: 75, 11: 67, 22: 28, 40: 20}
    small = torch.cat([torch.full((number,), units) for units, number in counts.items()])
    large = torch.linspace(1, 4, 2110) * (torch.arange(2110) % 10 > 2)
    return torch.cat([small * 2.0**-30, large]).mul(scale).half().float()


def test_a_few_small_elements_prove_little() -> None:
    """In a small layer, chance makes the distribution of magnitudes flat: the lower bound does not follow it down."""
    found = flushed_in(samples(small_layer, [6, 4, 4]))
    true = float((small_layer(2.0**4) == 0).float().mean()) - 0.3 * 2110 / 2410
    assert found is not None
    assert 0.02 < found.seen < found.low < 3 * true


def test_zeros_beyond_the_elements_that_a_scale_can_flush_come_from_the_data() -> None:
    """After a fall by one bit, more zeros than there were elements near fp16's smallest are no experiment."""
    seen = samples(small_layer, [6, 5, 5, 5])
    calm = flushed_in(seen)
    seen.on_grid.zeros[1:] += 200
    changed = flushed_in(seen)
    assert calm is not None
    assert calm.plausible
    assert changed is not None
    assert not changed.plausible
