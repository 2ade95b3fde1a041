"""Findings as the page tells them apart, and the verdict in one line."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ampmon.wire import Finding
from ampmon_server.model.notices import answer_of, keys_of, where_of


def finding(title: str, severity: str = "warning", scaler: str = "g") -> Finding:
    return Finding(
        rule="skip_rate",
        severity=severity,
        title=title,
        explanation="",
        scaler=scaler,
    )


def test_a_finding_keeps_its_key_while_its_numbers_change_and_others_come_before_it() -> None:
    """A key depends on the rule and the scaler, and several findings of both have keys of their own."""
    one, later, other = finding("1 of 9"), finding("2 of 9"), finding("3 of 9", scaler="d")
    assert keys_of([one])[0] == keys_of([other, later])[1]
    assert len({*keys_of([one, later, other])}) == 3


def test_what_needs_nothing_done_is_said_in_a_line() -> None:
    """Else the worst finding is the answer."""
    notice, warning = finding("n", "notice"), finding("w")
    assert answer_of([], 1) == "No problems found."
    assert answer_of([notice, notice], 1) == "Healthy · 2 notices"
    assert answer_of([], 0) == answer_of([notice], 0) == "No steps recorded."
    assert answer_of([warning, notice], 1) == answer_of([warning], 0) == "w"


@pytest.mark.parametrize(
    ("parameters", "several", "words"),
    [
        ((), False, ""),
        ((), True, "Scaler `g`"),
        (("a.w", "b"), False, "In `a.w`, `b`"),
        (("a.w",), True, "Scaler `g` · in `a.w`"),
        (tuple("abcdef"), False, "In `a`, `b`, `c`, `d`, `e` and 1 more parameter"),
    ],
)
def test_a_finding_names_its_place(parameters: tuple[str, ...], several: bool, words: str) -> None:
    """Up to five parameters are named, and the scaler only if the run has several."""
    assert where_of(replace(finding("f"), parameters=parameters), several) == words
