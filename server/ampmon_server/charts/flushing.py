"""The estimated share of elements that fp16 flushed to zero, as shown by changes of the scale, with its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampmon_server.analysis.flushed import Flushed
from ampmon_server.charts.parts.bands import band, held, line
from ampmon_server.charts.parts.judged import JudgedGradients
from ampmon_server.charts.parts.layout import Trace
from ampmon_server.charts.parts.source import View, Window
from ampmon_server.model.series import Floats
from ampmon_server.model.words import percent


DEFINITION = (
    "Values that fp16 turned into zero, as a share of all elements. They look like any other zero, so the share is "
    "estimated: from how many zeros appeared and disappeared with the scale, and from how the magnitudes continue "
    "below the range of fp16. Hatched between the bounds of the estimate, and drawn only at the newest scale, to "
    "which it applies."
)

_HATCH: Mapping[str, Any] = {
    "fillcolor": "role:zero",
    "fillpattern": {
        "shape": "/",
        "size": 6,
        "solidity": 0.25,
        "fgcolor": "role:zero",
        "bgcolor": "rgba(0,0,0,0)",
    },
}


@dataclass(frozen=True, slots=True)
class Flushing:
    """The estimate, and both ends [c] of the newest columns of samples, which have the scale of the estimate."""

    gone: Flushed
    left: Floats
    right: Floats

    @classmethod
    def of(cls, gone: Flushed | None, judged: JudgedGradients, window: Window) -> Flushing | None:
        """Return what to draw; None if nothing is known, or if the data moved the zeros and not the scale."""
        if gone is None or not gone.plausible or judged.side == "off":
            return None
        scales = np.stack([judged.cells["scale_first"], judged.cells["scale_last"]])
        other = np.flatnonzero((scales != scales[1, -1]).any(0))
        # The newest column is drawn even if some of its samples have an older scale.
        begins = min(int(other[-1]) + 1 if len(other) else 0, len(judged.cells) - 1)
        left, right = held(judged.x, window)
        return cls(gone, left[begins:], right[begins:])

    def traces(self, low: float, high: float, at: float, view: View) -> list[Trace]:
        """Draw the bounds and the estimate, at heights of a log axis."""
        every = np.ones(len(self.left))
        pieces = self.left, self.right
        said = [f"≈ {self.words}"] * len(self.left)
        return [
            band(
                *pieces,
                low * every,
                high * every,
                view,
                name="flushed, its bounds",
                opacity=0.5,
                **_HATCH,
            ),
            {
                **line(*pieces, at * every, view, said, name="flushed"),
                "line": {"color": "role:zero", "width": 1.5, "dash": "dash"},
            },
        ]

    @property
    def words(self) -> str:
        """The estimate and its bounds."""
        low, at, high = (
            percent(each) for each in (self.gone.low, self.gone.estimate, self.gone.high)
        )
        return f"{at} ({low} – {high})"


def caption(flushing: Flushing | None, gone: Flushed | None, judged: JudgedGradients) -> str:
    """Say what is known of the flushed share, in a sentence with a leading space."""
    if flushing is not None:
        return f" fp16 flushed some of the zeros: an estimated {flushing.words} of all elements."
    if judged.side == "off":
        return ""
    why = (
        "no change of the scale has samples on both sides"
        if gone is None
        else "their number changed more than fp16 can explain, so the data changed along with the scale"
    )
    return f" How many of the zeros fp16 flushed is not known: {why}."
