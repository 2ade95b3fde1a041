"""Tables of chunks hold each element of each gradient once, and making them runs no Python for each chunk."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch

from ampmon.probe.gpu.table import CHUNK_MAX, CHUNK_MIN, Tables


SHAPES = {
    "none": [],
    "empty": [(0,), (3, 0)],
    "small": [(), (1,), (CHUNK_MIN - 1,), (CHUNK_MIN,), (CHUNK_MIN + 1,), (0,), (7,)],
    "large": [(2 * CHUNK_MAX + 1,), (5,), (1 << 26,)],
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_chunks_hold_each_element_once(shapes: list[tuple[int, ...]]) -> None:
    """Chunks cover each tensor from its first element to its last, all but its last chunk of one size."""
    gradients = [torch.empty(shape, dtype=torch.int8) for shape in [*shapes, (9,)]]
    table = Tables().of(gradients)
    expected = []
    size = int(table.chunks[:, 2].max())
    for row, gradient in enumerate(gradients):
        for start in range(0, gradient.numel(), size):
            expected.append([row, start, min(size, gradient.numel() - start)])
    assert table.chunks.tolist() == expected
    assert table.grid == len(expected)


def lines_run(numel: int) -> int:
    """Return the lines of Python that run to make the table of a gradient of this many elements."""
    gradient, lines = torch.empty(1, dtype=torch.int8).expand(numel), 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        Tables().of([gradient])
    finally:
        sys.settrace(before)
    return lines


def test_tables_take_no_python_for_each_chunk() -> None:
    """Making a new table takes as many lines of Python for 10 000 chunks as for 10."""
    assert lines_run(10_000 * CHUNK_MAX) == lines_run(10 * CHUNK_MAX)
