"""Pages of rolled-up parameters, also those of an ampmon with fewer statistics."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.parameters import FIELDS, layout, taken
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages.packing import compress
from ampmon_server.store.samples.parameter_rollups import ParameterPyramid
from ampmon_server.store.schema.tables import parameter_rollups


def pyramid(parameters: int) -> ParameterPyramid:
    return ParameterPyramid(parameter_rollups, layout(parameters), 4, parameters=parameters)


def some_cells(parameters: int) -> Cells:
    """Nine cells whose fields all differ."""
    words = pyramid(parameters).dtype.itemsize // 8
    numbers = np.arange(9 * words, dtype=np.float64)
    cells = np.zeros(9, pyramid(parameters).dtype)
    for index, name in enumerate(cells.dtype.names or ()):
        cells[name] = (numbers[index : index + cells[name].size] + index).reshape(cells[name].shape)
    return cells


def same(found: Cells, wanted: Cells) -> None:
    assert found.dtype == wanted.dtype
    for name in wanted.dtype.names or ():
        np.testing.assert_array_equal(found[name], wanted[name], name)


@pytest.mark.parametrize("parameters", [1, 3])
def test_what_a_page_lacks_is_unknown(parameters: int) -> None:
    """A statistic and a parameter that a page lacks are unknown in its cells; the others are as they were."""
    cells = some_cells(parameters)
    fields = tuple(name for name in FIELDS if name not in {"norm", "zeros"})
    fewer = taken(cells, range(parameters), fields)
    found = pyramid(parameters + 1).unpack([pyramid(parameters).pack(fewer)])
    same(taken(found, range(parameters), fields), fewer)
    assert np.isnan(found["norm"]).all()
    assert not found["zeros"].any()
    assert np.isnan(found["amax"][:, -1]).all()


ALL = some_cells(3).dtype.names or ()


def _page(parameters: int, fields: tuple[str, ...], planes: bytes) -> bytes:
    return compress(msgspec.msgpack.encode((parameters, fields, planes)))


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\x01",
        b"\x01" + _page(3, ALL, b""),
        b"rubbish",
        compress(b"rubbish"),
        _page(3, ALL, bytes(8)),
        _page(3, ALL, bytes(7)),
        _page(-3, ALL, bytes(8)),
        _page(2**62, ALL, bytes(8)),
        _page(3, ("first", "first"), bytes(8)),
        _page(3, ("looked",), bytes(24)),
    ],
)
def test_a_damaged_page_is_an_error(page: bytes) -> None:
    """Bytes that are no page raise Damaged, whatever they claim."""
    with pytest.raises(Damaged, match="a page of parameter_rollups is damaged"):
        pyramid(3).unpack([page])


def test_a_flipped_bit_makes_no_wrong_number() -> None:
    """A page with any one bit flipped raises Damaged, unless its cells are still right."""
    cells = some_cells(3)
    page = pyramid(3).pack(cells)
    damaged = 0
    for index in range(len(page)):
        flipped = bytearray(page)
        flipped[index] ^= 1 << index % 8
        try:
            same(pyramid(3).unpack([bytes(flipped)]), cells)
        except Damaged:
            damaged += 1
    assert damaged > len(page) / 2
