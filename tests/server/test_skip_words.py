"""A skipped step in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ampmon_server.model.case import Skip, SkipCulprit
from ampmon_server.queries.merged_skips import words_of


SKIP = Skip(
    step=7,
    time=1,
    stream="0",
    rank=0,
    scaler="scaler",
    attempt=0,
    optimizer="AdamW",
    path="python",
    cause="inf",
    scale=65536.0,
    scale_kind=None,
    scale_after=1000.0,
    scale_after_kind=None,
    culprits=[],
    culprit_order="learned",
    culprit_parameters=0,
    origin=None,
    origin_module=None,
    loss=None,
)


@pytest.mark.parametrize(
    ("changed", "name", "words"),
    [
        ({}, "scale", "2¹⁶ → 1\u202f000 ≈ 2⁹·⁹⁷"),
        ({"scale_after": None, "scale_after_kind": "inf"}, "scale", "2¹⁶ → ∞"),
        ({"scale": None}, "scale", "– → 1\u202f000 ≈ 2⁹·⁹⁷"),
        ({}, "cause", "✕ inf"),
        ({"cause": "inf+nan"}, "cause", "✕ inf, ◆ NaN"),
        ({"cause": "unknown"}, "cause", "not known"),
        ({}, "origin", ""),
        ({"origin": "loss"}, "origin", " in the loss"),
        (
            {"origin": "forward", "origin_module": "mlp.0"},
            "origin",
            " in forward, first in `mlp.0`",
        ),
        (
            {"origin": "backward", "origin_module": "mlp"},
            "origin",
            " in backward, first at `mlp`",
        ),
        ({}, "loss", ""),
        ({"loss": "overflowed"}, "loss", "loss finite, loss × scale overflowed"),
    ],
)
def test_a_skip_is_said_in_words(changed: dict[str, Any], name: str, words: str) -> None:
    """The scale moves from one power to another; cause, origin and loss are named as far as they are known."""
    assert words_of(replace(SKIP, **changed))[name] == words


@pytest.mark.parametrize(
    ("counts", "total", "culprits", "others"),
    [
        ([], 0, [], ["not known"]),
        ([(3, 0)], 1, ["3 inf"], []),
        ([(2000, 1), (None, None)], 2, ["2\u202f000 inf, 1 NaN", "not counted"], []),
        ([(1, 0)] * 6, 9, ["1 inf"] * 4, ["and 5 more parameters"]),
    ],
)
def test_culprits_are_named_and_the_rest_counted(
    counts: list[tuple[int | None, int | None]], total: int, culprits: list[str], others: list[str]
) -> None:
    """Up to four culprits are named with their numbers of inf and NaN. With several, their order is stated."""
    named = [SkipCulprit(f"layer.{at}", *each) for at, each in enumerate(counts)]
    words = words_of(replace(SKIP, culprits=named, culprit_parameters=total))
    order = ["in backward order (measured)"] * (total > 1)
    assert words["culprits"] == [[f"layer.{at}", each] for at, each in enumerate(culprits)]
    assert words["others"] == others + order
