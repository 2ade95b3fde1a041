"""The history of the scale in the list of runs."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from ampmon_server.charts.sparkline import RUG_MAX, sparkline
from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.model.aggregates.updates import LAYOUT, ROWS, empty, of_rows


def cells(scales: list[float], *, first: int = 0, skipped: tuple[int, ...] = ()) -> Cells:
    """One cell per update, from the step ``first`` on."""
    rows = np.zeros(len(scales), ROWS)
    rows["step"] = np.arange(first, first + len(scales))
    rows["skipped"][list(skipped)] = True
    rows["duration_ns"] = rows["memory_peak"] = -1
    rows["scale"] = rows["scale_after"] = scales
    return of_rows(rows)


def test_a_small_run_is_drawn_as_it_is() -> None:
    """Four updates with a drop of four binades are a path with one step down, and one mark for the skip."""
    drawn = sparkline(cells([2.0**16, 2.0**16, 2.0**12, 2.0**12], skipped=(1,)))
    assert drawn is not None
    assert asdict(drawn) == {
        "path": "M0 2H64V22H96",
        "skips": "M32 24V20",
        "words": "from 2¹⁶ to 2¹²",
    }


def test_a_scale_that_stands_still_is_a_line_in_the_middle() -> None:
    """A constant scale is a line in the middle, as wide for a single update as for any run."""
    for scales in ([1024.0], [1024.0] * 5):
        drawn = sparkline(cells(scales))
        assert drawn is not None
        assert (drawn.path, drawn.words) == ("M0 12H96", "2¹⁰ all along")


def test_a_collapse_of_one_update_among_many_is_not_hidden() -> None:
    """The lowest scale of 100,000 updates is drawn and named, although cells are merged."""
    scales = [65536.0] * 100_000
    scales[43_210] = 8.0
    whole = cells(scales, skipped=(43_210,))
    drawn = sparkline(LAYOUT.merge(whole, np.arange(0, len(whole), 4096)))
    assert drawn is not None
    assert drawn.words == "from 2¹⁶ to 2¹⁶, 2³ at its lowest"
    assert "V22" in drawn.path
    assert drawn.skips == "M41.5 24V20"
    assert len(drawn.path) < 100


def test_the_line_is_lifted_where_steps_are_missing() -> None:
    """The path is broken where steps are missing."""
    drawn = sparkline(joined([cells([4.0] * 5), cells([4.0] * 2, first=9)]))
    assert drawn is not None
    assert drawn.path == "M0 12H38.4M86.4 12H96"


def test_many_skips_are_no_rug() -> None:
    """With more than RUG_MAX skips, no marks are drawn."""
    drawn = sparkline(cells([4.0] * 96, skipped=tuple(range(0, 96, 96 // (RUG_MAX + 1)))))
    assert drawn is not None
    assert drawn.skips == ""


def test_what_cannot_be_drawn_is_not() -> None:
    """Without an update or a finite scale there is no sparkline."""
    assert sparkline(empty()) is None
    assert sparkline(cells([np.nan, np.nan])) is None
