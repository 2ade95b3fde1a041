"""The limits of number formats equal those of their definitions and of torch."""

from __future__ import annotations

import pytest
import torch

from ampmon.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FloatFormat


TORCH = [
    (FP16, torch.float16),
    (BF16, torch.bfloat16),
    (FP32, torch.float32),
    (E4M3, torch.float8_e4m3fn),
    (E5M2, torch.float8_e5m2),
]


@pytest.mark.parametrize(("number_format", "dtype"), TORCH)
def test_limits_are_torchs(number_format: FloatFormat, dtype: torch.dtype) -> None:
    """The largest number, the smallest normal and the smallest subnormal equal those of torch's dtype."""
    info = torch.finfo(dtype)
    assert number_format.max == info.max
    assert number_format.min_normal == info.smallest_normal
    assert (
        torch.tensor(number_format.min_subnormal).to(dtype).double().item()
        == number_format.min_subnormal
    )


@pytest.mark.parametrize(
    ("number_format", "dtype"), [(FP16, torch.float16), (BF16, torch.bfloat16)]
)
def test_thresholds_are_where_casts_turn(number_format: FloatFormat, dtype: torch.dtype) -> None:
    """Casts give zero at half the least number and inf at half a step above the largest, and neither just inside."""
    flush = number_format.min_subnormal / 2
    overflow = number_format.max + 2.0 ** (
        number_format.exponent_max - number_format.mantissa_bits - 1
    )
    cast = torch.tensor(
        [flush, flush * 1.001, overflow * 0.9999, overflow], dtype=torch.float64
    ).to(dtype)
    assert cast[0] == 0
    assert cast[1] == number_format.min_subnormal
    assert cast[2].isfinite()
    assert cast[3].isinf()


def test_fp16_spans_forty_binades() -> None:
    """fp16 has numbers in the binades from 2^-24 to 2^15."""
    assert (FP16.exponent_min_subnormal, FP16.exponent_min_normal, FP16.exponent_max) == (
        -24,
        -14,
        15,
    )
