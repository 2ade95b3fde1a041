"""Floating-point formats. Every limit follows from the widths of exponent and mantissa (IEEE 754-2019, 3.3).

The two fp8 formats are those of arXiv 2209.05433. E5M2 keeps IEEE's infinities. For more range, E4M3 gives up infinity
and all NaN patterns but one, which `reserved_top` counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format.

    ``reserved_top`` is how many of the largest significands at the highest usable exponent encode no number.
    ``ieee_specials`` says whether infinity and NaN take up a whole exponent code.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    ieee_specials: bool = True
    reserved_top: int = 0

    @property
    def bias(self) -> int:
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def exponent_max(self) -> int:
        """Exponent of the largest binade."""
        codes = int(2**self.exponent_bits) - (2 if self.ieee_specials else 1)
        return codes - self.bias

    @property
    def exponent_min_normal(self) -> int:
        return 1 - self.bias

    @property
    def exponent_min_subnormal(self) -> int:
        """Exponent of the smallest non-zero magnitude: the spacing of the format's grid near zero."""
        return self.exponent_min_normal - self.mantissa_bits

    @property
    def max(self) -> float:
        """Largest finite magnitude."""
        significand = 2.0 - 2.0**-self.mantissa_bits * (1 + self.reserved_top)
        return significand * 2.0**self.exponent_max

    @property
    def min_normal(self) -> float:
        return 2.0**self.exponent_min_normal

    @property
    def min_subnormal(self) -> float:
        return 2.0**self.exponent_min_subnormal


FP16 = FloatFormat("fp16", exponent_bits=5, mantissa_bits=10)
BF16 = FloatFormat("bf16", exponent_bits=8, mantissa_bits=7)
FP32 = FloatFormat("fp32", exponent_bits=8, mantissa_bits=23)
E4M3 = FloatFormat("E4M3", exponent_bits=4, mantissa_bits=3, ieee_specials=False, reserved_top=1)
E5M2 = FloatFormat("E5M2", exponent_bits=5, mantissa_bits=2)
