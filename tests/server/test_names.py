"""Search for parameters by name, and the module and block that a name belongs to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import made_series as made
from ampmon_server.model.names import block_of, file_name, matching_indices, module_of, shortened


ASTRONAUT = "\U0001f469\U0001f3fd\u200d\U0001f680"
GERMANY = "\U0001f1e9\U0001f1ea"
SCOTLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
HAN, NAM = "\u1112\u1161\u11ab", "\u0e19\u0e49\u0e33"
NAMES = ("wte.weight", "h.0.attn.weight", "h.10.attn.bias", "odd[0]*")


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("", [0, 1, 2, 3]),
        ("ATTN", [1, 2]),
        ("h.?.*", [1]),
        ("h.*", [1, 2]),
        ("*weight", [0, 1]),
        ("attn*", []),
        ("[0]", [3]),
        ("nothing", []),
    ],
)
def test_a_search_is_part_of_a_name_or_a_pattern_of_all_of_it(
    search: str, found: list[int]
) -> None:
    """A search finds a substring, or with wildcards matches the whole name. It ignores case; brackets are literal."""
    assert matching_indices(NAMES, search) == found


def test_a_pattern_full_of_wildcards_comes_to_an_end() -> None:
    """A pattern of 127 wildcards that almost matches finds nothing, without endless backtracking."""
    assert matching_indices(["a" * 1024 + "b"] * 100, "*a" * 127 + "c") == []


@made.SOME
@given(st.lists(st.text(max_size=20), max_size=5), st.text("ab[]!-", max_size=10))
def test_a_search_without_wildcards_finds_what_holds_it(names: list[str], search: str) -> None:
    """A search without wildcards finds the names that contain its text, ignoring case."""
    held = [
        index
        for index, name in enumerate(names)
        if re.search(re.escape(search), name, re.IGNORECASE)
    ]
    assert matching_indices(names, search) == held


@pytest.mark.parametrize(
    ("name", "module", "block"),
    [
        ("transformer.h.3.attn.weight", "transformer.h.3.attn", "transformer.h.3"),
        ("head.weight", "head", "head"),
        ("0.weight", "0", "0"),
        ("scale", "scale", "scale"),
    ],
)
def test_a_parameter_is_of_a_module_and_of_a_block(name: str, module: str, block: str) -> None:
    """The module is the name without its last part; the block ends at the first number, if there is one."""
    assert (module_of(name), block_of(name)) == (module, block)


@pytest.mark.parametrize(
    "run", ["a/b ../c", "..", "名" * 200, "é" * 79 + "名", "\U0001f525名" * 90]
)
def test_a_run_names_a_file(run: str, tmp_path: Path) -> None:
    """A file called after a run can be made, also beside it while it is written, whatever the run is called."""
    file = tmp_path / f".{file_name(run)}-updates.parquet.4194304"
    file.touch()
    assert file.parent == tmp_path


@pytest.mark.parametrize(
    ("name", "letters", "said"),
    [
        ("short", 5, "short"),
        ("blocks.0.attn.weight", 11, "block…eight"),
        ("\U0001d501" * 9, 8, "\U0001d501" * 4 + "…" + "\U0001d501" * 3),
        ("e\u0301" * 9, 8, "e\u0301e\u0301…e\u0301"),
        (ASTRONAUT * 5, 12, f"{ASTRONAUT}…{ASTRONAUT}"),
        (f"aa{GERMANY}bbb{GERMANY}aa", 7, "aa…aa"),
        (f"a{SCOTLAND}bbb{SCOTLAND}a", 7, "a…a"),
        (NAM * 9, 9, f"{NAM}…{NAM}"),
        (HAN * 9, 9, f"{HAN}…{HAN}"),
    ],
)
def test_a_shortened_name_keeps_both_ends(name: str, letters: int, said: str) -> None:
    """It is cut between letters, not before an accent or within an emoji."""
    assert shortened(name, letters) == said
