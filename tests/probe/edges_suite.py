"""The kernels at the edges of every class of values, under Triton's interpreter (see test_kernels.py) or on a GPU."""

from __future__ import annotations

import math

import pytest
import torch

from ampmon.probe.gpu import kernels
from probe.kernel_suite import BITS, DEVICE, INTERPRETED, canonical, check


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflows are intended


def every(dtype: torch.dtype) -> torch.Tensor:
    """Return every value of a 16-bit dtype."""
    return torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)


def neighbours(dtype: torch.dtype) -> torch.Tensor:
    """Return the values at which bins, fp16's grid and rounding to it change, and those one ulp beside."""
    info = torch.finfo(dtype)
    powers = torch.exp2(torch.arange(-160, 129, dtype=torch.float64)).to(dtype)
    halves = every(torch.float16).double().abs().unique()
    halves = halves[halves.isfinite()]
    midpoints = ((halves[1:] + halves[:-1]) / 2)[:: 37 if INTERPRETED else 1]
    ends = torch.tensor([0.0, info.tiny, info.max, math.inf, math.nan, 65504.0, 65520.0])
    middle = torch.cat([powers, midpoints.to(dtype), ends.to(dtype)])
    middle = torch.cat([middle, -middle])
    bits = middle.view(BITS[dtype])
    return torch.cat([middle, *((bits + step).view(dtype) for step in (-1, 1))])


ADVERSARIAL = {
    "every fp16": every(torch.float16),
    "every bf16": every(torch.bfloat16),
    "fp32 neighbours": neighbours(torch.float32),
    "fp64 neighbours": neighbours(torch.float64),
    "0-dim": torch.tensor(-(2.0**-24)),
    "0-dim fp16": torch.tensor(math.nan, dtype=torch.float16),
}
FACTORS = [1.0, 0.5, 2.0**-16, 0.3, 2.0**127, 0.0, math.inf, math.nan]


@pytest.mark.parametrize("values", ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_the_edges_of_every_class_are_counted(values: torch.Tensor) -> None:
    """Every 16-bit value and the values around each edge are counted as by float64 arithmetic."""
    measured = [values.to(DEVICE)]
    check(kernels.Cache().statistics(measured), measured)


@pytest.mark.parametrize("factor", FACTORS, ids=str)
@pytest.mark.parametrize("name", ["every fp16", "fp32 neighbours", "0-dim", "0-dim fp16"])
def test_the_edges_are_unscaled_alike(name: str, factor: float) -> None:
    """Unscaling edge values by ordinary and extreme factors gives torch's results, NaN payloads aside."""
    step = 5 if INTERPRETED and factor not in (1.0, 0.3) else 1
    ours = ADVERSARIAL[name].clone().to(DEVICE)
    ours = ours if name.startswith("0") else ours[::step].contiguous()
    theirs = ours.clone()
    inv_scale = torch.tensor([factor], device=DEVICE)
    found, expected = torch.zeros(1, device=DEVICE), torch.zeros(1, device=DEVICE)

    kernels.Cache().unscale([ours], found, inv_scale)
    torch._amp_foreach_non_finite_check_and_unscale_([theirs], expected, inv_scale)

    assert canonical([ours]) == canonical([theirs])
    assert found.tolist() == expected.tolist() == [float(name != "0-dim")]
