"""Numbers in words, checked against the golden file that the page's tests use too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ampmon_server.model import words


GOLDEN = json.loads(
    (Path(__file__).parents[1] / "web" / "words.golden.json").read_text(encoding="utf-8")
)
CASES = [(name, case, said) for name, cases in GOLDEN.items() for case, said in cases]


@pytest.mark.parametrize(("name", "case", "said"), CASES)
def test_words_are_those_of_the_golden_file(name: str, case: Any, said: str) -> None:
    """Each function returns the text in the golden file."""
    arguments = case if isinstance(case, list) else [case]
    assert getattr(words, name)(*arguments) == said


def test_a_share_is_never_rounded_to_none_or_all() -> None:
    """A share other than 0 and 1 is never shown as 0 % or 100 %."""
    for share in (1e-300, 1e-9, 1 - 1e-9, 1 - 2**-53):
        assert words.percent(share) not in {words.percent(0), words.percent(1)}


def test_zero_has_no_sign() -> None:
    """A share or a scale of -0.0 has the text of 0, as on the page, and so does the next 0.0."""
    assert [words.percent(share) for share in (-0.0, 0.0)] == ["0\u202f%"] * 2
    assert [words.power_of_two(scale) for scale in (-0.0, 0.0)] == ["0", "0"]


def test_scales_that_are_no_numbers_are_named() -> None:
    """NaN and infinity have texts of their own."""
    assert words.power_of_two(float("nan")) == "NaN"
    assert words.power_of_two(float("inf")) == "∞"
    assert words.power_of_two(float("-inf")) == "−∞"


@pytest.mark.parametrize(
    ("number", "code"),
    [(65536.0, "65536"), (2.0**24, "2.0**24"), (2.0**-40, "2.0**-40"), (0.1, "0.1"), (0.5, "0.5")],
)
def test_a_number_in_code_is_the_number(number: float, code: str) -> None:
    """A number in code evaluates to exactly the same number, and an integer is written in full."""
    assert words.in_code(number) == code
    assert eval(words.in_code(number)) == number
    assert words.in_code(1_000_000) == "1000000"


def test_magnitudes_are_written_out_where_they_can_be() -> None:
    """Only very large or small magnitudes use a power of ten."""
    said = [words.magnitude_of(each) for each in (0.000976, 1.0, 999.6, 5924.0, 29984.0, 1.5e8)]
    assert said == ["0.000976", "1", "1\u202f000", "5\u202f924", "29\u202f984", "1.5e8"]
    assert words.magnitude_of(-5924.0) == "-5\u202f924"  # a loss may be negative


def test_an_exponent_is_written_as_the_page_writes_it() -> None:
    """Significant digits have an exponent without a plus and without zeros, as in the page's tables."""
    said = [words.digits_of(each) for each in (3.8147e-6, -2e-10, 2.5e9, 0.13849, 1200.0)]
    assert said == ["3.815e-6", "-2e-10", "2.5e9", "0.1385", "1200"]
    assert [words.digits_of(each, 3) for each in (math.inf, 1e100)] == ["inf", "1e100"]


def test_headroom_may_be_negative() -> None:
    """A headroom has one decimal, its sign and its unit, and an infinite one is named."""
    assert words.bits(4.21) == "4.2\u202fbits"
    assert words.bits(-0.5) == "−0.5\u202fbits"
    assert words.bits(-0.00002) == "0.0\u202fbits"
    assert words.bits(float("-inf")) == "−∞"
