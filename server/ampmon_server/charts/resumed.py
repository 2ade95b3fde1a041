"""Marks on the line of the scale where a process resumed the run: with its scaler's state restored, or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampmon_server.charts.parts.layout import Trace, log2_scale, plot_x
from ampmon_server.charts.parts.source import Source, View, Window
from ampmon_server.charts.parts.typed import typed
from ampmon_server.model.series import Floats, Resume
from ampmon_server.model.words import power_of_two, steps


MARKED_MAX = 200
"""At most this many starts are marked, the newest."""

_RESTORED = {"symbol": "diamond-open", "size": 9}
_FORGOTTEN = {"symbol": "star-diamond-open", "size": 11}


def resumed(source: Source, window: Window, view: View) -> list[Trace]:
    """Mark the process starts in a window, apart for scalers that kept their scale and for those that lost it."""
    at = np.array([(each.step, each.time) for each in source.resumes], np.int64).reshape(-1, 2)
    x = window.x.of(at[:, 0], at[:, 1])
    seen = np.flatnonzero((x >= window.low) & (x <= window.high))[-MARKED_MAX:]
    forgot = np.array([source.resumes[place].forgotten is not None for place in seen], bool)
    return [
        _marks(name, [source.resumes[place] for place in places], x[places], view, symbol)
        for name, places, symbol in (
            ("resumed", seen[~forgot], _RESTORED),
            ("not restored", seen[forgot], _FORGOTTEN),
        )
        if len(places)
    ]


def _marks(
    name: str, starts: Sequence[Resume], x: Floats, view: View, symbol: dict[str, Any]
) -> Trace:
    return {
        "type": "scatter",
        "name": name,
        "mode": "markers",
        "marker": {
            **symbol,
            "color": "role:ink",
            "line": {"width": 1.5, "color": "role:ink"},
        },
        "x": plot_x(x, view),
        "y": typed(log2_scale(np.array([each.scale for each in starts]))),
        "text": [_say(each) for each in starts],
        "hoverinfo": "text",
        "cliponaxis": False,
    }


def _say(start: Resume) -> str:
    where = steps(start.step, start.step)
    if start.forgotten is not None:
        moved = f"{power_of_two(start.forgotten.before)} → {power_of_two(start.scale)}"
        return f"{where}: the scaler's state was not restored<br>{moved}"
    how = "its state restored" if start.restored else "its state not restored"
    return f"{where}: resumed, {how}<br>{power_of_two(start.scale)}"
