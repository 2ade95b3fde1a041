"""Formats numbers for charts and findings. The page's format.js says some of it: one golden file tests both."""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache


SPACE = "\u202f"
"""Narrow no-break space, put between thousands and before a unit."""

PERCENT = SPACE + "%"

_RAISED = str.maketrans("-.0123456789", "⁻·⁰¹²³⁴⁵⁶⁷⁸⁹")

NONE = "–"
"""Shown where there is no value."""

_THREE_DIGITS = Context(prec=3, rounding=ROUND_HALF_UP)
_SIX_DECIMALS = Decimal("0.000001")


def count(number: int) -> str:
    """Format ``2000`` as "2 000"."""
    return f"{number:,}".replace(",", SPACE)


def magnitude_of(number: float) -> str:
    """Format a magnitude with three digits, "0.000977". From a thousand to a million it is a whole number, "65 504"."""
    return count(round(number)) if 999.5 <= abs(number) < 1e6 else digits_of(number, 3)


@lru_cache(maxsize=8192)  # charts of a growing run say the same shares again and again
def percent(share: float) -> str:
    """Format a share of 0..1: two digits below 10 %, else one decimal. Only exactly 0 and 1 give "0 %" and "100 %"."""
    parts = 100 * share + 0.0  # -0.0 becomes 0.0
    if parts in (0, 100):
        return f"{parts:.0f}" + PERCENT
    if parts >= 99.95:
        return ">" + SPACE + "99.9" + PERCENT
    if parts < 1e-6:
        return "<" + SPACE + "0.000001" + PERCENT
    return _trim(_fixed(parts, 1) if parts >= 9.95 else _two_digits(parts)) + PERCENT


def within(share: float | None, error: float | None = None) -> str:
    """Format a share with its standard error, "3.1 % ± 0.2 %". An exact share stands alone. None is not known."""
    if share is None:
        return NONE
    return f"{percent(share)} ± {percent(error)}" if error else percent(share)


@lru_cache(maxsize=1024)
def power_of_two(scale: float) -> str:
    """Format a loss scale: "32 768 = 2¹⁵" or "1 000 ≈ 2⁹·⁹⁷". Very small and very large ones show only the power."""
    if not math.isfinite(scale):
        return not_finite(scale)
    if scale <= 0:
        return _trim(f"{scale + 0.0:.6f}")
    fraction, exponent = math.frexp(scale)
    exact = fraction == 0.5
    power = two_to(exponent - 1 if exact else round(math.log2(scale), 2) + 0.0)  # -0.0 becomes 0.0
    if not 1e-3 <= scale < 2**53:
        return power
    digits = count(int(scale)) if scale == int(scale) else _decimals(scale)
    return f"{digits} {'=' if exact else '≈'} {power}"


def scale_words(scale: float | None, kind: str | None) -> str:
    """Format a loss scale of a record, in which NaN and infinities are only a ``kind``."""
    if kind is not None:
        return not_finite(float(kind))
    return NONE if scale is None else power_of_two(scale)


def two_to(exponent: float) -> str:
    """Format a power of two: "2⁻¹⁴", "2⁹·⁹⁷"."""
    return "2" + str(exponent).removesuffix(".0").translate(_RAISED)


def bits(number: float) -> str:
    """Format a headroom: "4.2 bits", "−0.5 bits"."""
    if not math.isfinite(number):
        return not_finite(number)
    digits = f"{number:.1f}".replace("-0.0", "0.0").replace("-", "−")
    return f"{digits}{SPACE}{'bit' if abs(number) == 1 else 'bits'}"


def measure(number: float) -> str:
    """Format three significant digits, in scientific notation below 0.001 and from 100 000: "0.123", "2.50e9"."""
    if not math.isfinite(number):
        return not_finite(number)
    rounded = _THREE_DIGITS.create_decimal_from_float(number)
    if number == 0 or 1e-3 <= abs(number) < 1e5:
        return repr(float(rounded)).removesuffix(".0")
    digits, exponent = f"{rounded:.2e}".split("e")
    return f"{digits}e{int(exponent)}"


def digits_of(number: float, digits: int = 4) -> str:
    """Format significant digits, with a short exponent if one is needed: "0.0001385", "3.815e-6", "2e9"."""
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{number:.{digits}g}")


def not_finite(number: float) -> str:
    """Format NaN or an infinity: "NaN", "∞" or "−∞"."""
    return "NaN" if math.isnan(number) else "∞" if number > 0 else "−∞"


def in_code(number: float) -> str:
    """Format a scale, factor or interval as Python code that evaluates to it: "65536", "2.0**24", "0.1"."""
    fraction, exponent = math.frexp(number)
    if isinstance(number, float) and fraction == 0.5 and abs(exponent) > 17:
        return f"2.0**{exponent - 1}"
    return repr(number).removesuffix(".0")


def power(exponent: float) -> str:
    """Format 2 to the power of ``exponent`` for a chart label, with HTML for the superscript."""
    return f"2<sup>{_trim(f'{exponent:.2f}')}</sup>"


def pruned(before: int) -> str:
    """Return a sentence about pruned rows, with a leading space. For step 0 it is empty."""
    return (
        f" Before step {count(before)}, steps are stored in groups of 16: their rows are pruned."
        if before
        else ""
    )


def steps(first: int, last: int) -> str:
    """Format a range of steps, both ends included."""
    return f"step {count(first)}" if first == last else f"steps {count(first)} – {count(last)}"


def plural(number: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun: "1 growth", "2 growths"."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _two_digits(number: float) -> str:
    """Two significant digits, never in scientific notation."""
    return _fixed(number, 1 - math.floor(math.log10(number)))


def _decimals(number: float) -> str:
    rounded = float(Decimal(number).quantize(_SIX_DECIMALS, ROUND_HALF_UP))
    whole, _, fraction = repr(rounded).partition(".")
    return _trim(f"{count(int(whole))}.{fraction}")


def _fixed(number: float, decimals: int) -> str:
    """Format a number >= 0 with ``decimals``. A half goes up, as in the browser, and not to the even digit."""
    if number * 2.0 ** (decimals + 1) % 2 == 1:  # only such numbers end in exactly a half
        number = math.nextafter(number, math.inf)
    return f"{number:.{decimals}f}"


def _trim(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
