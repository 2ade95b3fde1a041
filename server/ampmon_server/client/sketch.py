"""Draws the loss scale as a line of block characters, from the data of the page's own chart."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ampmon_server.client.client import ClientError


BLOCKS = "▁▂▃▄▅▆▇█"
SKIP, NO_SKIP, HOLE = "╵", " ", " "
BINADES = 4.0
"""Least height of the drawing, in powers of two, so that a small change of scale looks small."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sketch:
    """``line`` shows log2 of the scale over the run's updates, the lowest value in each column.

    ``marks``, as long as the line, has a tick below each column with skips. ``low`` and ``high`` are the extremes of
    log2 of the scale.
    """

    line: str = ""
    marks: str = ""
    low: float = 0.0
    high: float = 0.0


def sketch(figure: bytes, columns: int) -> Sketch:
    """Sketch the answer of GET /runs/{run_id}/figures/scale. The sketch is empty if the chart has no data."""
    try:
        traces = {trace["name"]: trace for trace in msgspec.json.decode(figure)["data"]}
        x, y = (array_of(traces["loss scale"][axis]) for axis in "xy")
        skips = array_of(traces["skips"]["x"]) if "skips" in traces else np.zeros(0)
    except KeyError:
        return Sketch()
    except (TypeError, ValueError, msgspec.DecodeError):
        raise ClientError("cannot read the server's chart of the loss scale") from None
    if not np.isfinite(y).any():
        return Sketch()
    columns = int(min(columns, x[-1] - x[0] + 1))
    lowest = _lowest(_column(x, x, columns), y, columns)
    marked = set(_column(x, skips, columns).tolist())
    return Sketch(
        _blocks(lowest),
        "".join(SKIP if column in marked else NO_SKIP for column in range(columns)),
        float(np.nanmin(y)),
        float(np.nanmax(y)),
    )


def array_of(values: Any) -> Floats:
    """Decode one of Plotly's typed arrays, or a list."""
    if isinstance(values, dict):
        found = np.frombuffer(b64decode(values["bdata"]), f"<{values['dtype']}")
        return found.astype(np.float64)
    return np.array(values, np.float64)


def _column(x: Floats, places: Floats, columns: int) -> npt.NDArray[np.int64]:
    """The column of each of ``places``, where ``x`` spans all columns."""
    share = (places - x[0]) / max(x[-1] - x[0] + 1, 1)
    column: npt.NDArray[np.int64] = np.clip((share * columns).astype(np.int64), 0, columns - 1)
    return column


def _lowest(column: npt.NDArray[np.int64], y: Floats, columns: int) -> Floats:
    """The lowest height in each column, NaN where steps are missing. A column without points repeats the one before."""
    lowest = np.full(columns, np.nan)
    last, before = np.nan, -1
    for at, height in zip(column.tolist(), y.tolist(), strict=True):
        lowest[before + 1 : at] = last
        lowest[at] = np.fmin(lowest[at] if at == before else np.nan, height)
        last, before = height, at
    return lowest


def _blocks(heights: Floats) -> str:
    """A block for each height, or a hole."""
    low, high = np.nanmin(heights), np.nanmax(heights)
    room = max(high - low, BINADES)
    share = (heights - (low + high - room) / 2) / room
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round(each * top)] if np.isfinite(each) else HOLE for each in share)
