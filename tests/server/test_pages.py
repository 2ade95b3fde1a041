"""Pages of rows: packing is lossless, and rows make the same page in any order of arrival."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon_server.model.aggregates.updates import ROWS, Rows
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages.pages import by_page, last_of_each_step, merged, pack, unpack


WORDS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-3, 300),
    st.sampled_from([np.float64(each).view(np.int64).item() for each in (np.nan, np.inf, 5e-324)]),
)


@given(st.lists(st.lists(WORDS, min_size=len(ROWS), max_size=len(ROWS)), min_size=1, max_size=300))
def test_what_is_packed_comes_back_bit_for_bit(words: list[list[int]]) -> None:
    """Any 64 bits in any field survive packing, including NaN payloads and the ends of int64."""
    rows = np.array(words, np.int64).view(ROWS)[:, 0]
    assert unpack(pack(rows), ROWS).tobytes() == rows.tobytes()


def made(keys: list[tuple[int, int]]) -> Rows:
    rows = np.zeros(len(keys), ROWS)
    rows["step"], rows["attempt"] = np.array(keys).T
    rows["time"] = rows["step"] * 10 + rows["attempt"]
    return rows


KEYS = st.lists(
    st.tuples(st.integers(0, 600), st.integers(0, 2)), min_size=1, max_size=80, unique=True
)


@given(KEYS, st.data())
def test_a_page_does_not_depend_on_the_order_in_which_rows_arrive(
    keys: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Rows of several attempts, merged in any order, make the same sorted page without duplicates."""
    order = data.draw(st.permutations(keys))
    held = made(sorted(order[:1]))
    for at in range(0, len(order), 7):
        held = merged(held, made(sorted(order[at : at + 7])))
    assert held.tobytes() == made(sorted(keys)).tobytes()
    assert {number for number, _ in by_page(held)} == {step >> 8 for step, _ in keys}
    assert last_of_each_step(held)["attempt"].tolist() == [
        max(attempt for step, attempt in keys if step == each) for each in sorted(dict(keys))
    ]


@pytest.mark.parametrize("place", [0, 1, 9, 25])
def test_a_changed_byte_is_reported(place: int) -> None:
    """A page with one flipped bit is reported as damaged."""
    data = bytearray(pack(made([(step, 0) for step in range(256)])))
    data[place] ^= 0x10
    with pytest.raises(Damaged):
        unpack(bytes(data), ROWS)
