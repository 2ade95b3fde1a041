"""Headroom of the loss scale: the room between the largest scaled gradient and fp16's largest number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampmon.numerics.formats import FP16
from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from ampmon_server.charts.parts.layout import beside
from ampmon_server.charts.parts.samples import JudgedGradients, judge, scales
from ampmon_server.charts.parts.source import View
from ampmon_server.charts.parts.traces import Trace, band, broken
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.series import Floats
from ampmon_server.model.words import plural


@dataclass(frozen=True, slots=True)
class Headroom:
    """log2 of the scale at columns of samples [c], and of the ``limit``, where the largest gradient would be 65504."""

    judged: JudgedGradients
    scale: Floats
    limit: Floats

    @property
    def bits(self) -> Floats:
        """The headroom in bits, [c]; NaN where it is unknown."""
        return self.limit - self.scale

    @property
    def top(self) -> float:
        """The highest limit that is drawn."""
        return float(self.limit[np.isfinite(self.limit)].max())

    def traces(self) -> list[Trace]:
        """Draw the band above the scale, and the line of its upper end."""
        window, name = self.judged.window, "headroom"
        x = np.append(self.judged.x, max(window.high, self.judged.x[-1]))
        points = broken(x, window.gaps, held=True)
        limit, bits = (np.append(each, each[-1]) for each in (self.limit, self.bits))
        shown = np.where(points.empty, np.nan, bits[points.taken])
        fill: Trace = {"name": name, "fillcolor": "role:scale", "opacity": 0.1}
        dots = {"shape": "hv", "color": "role:scale", "width": 1, "dash": "dot"}
        said = [_said(each) for each in shown.tolist()]
        hover: Trace = {"text": said, "hovertemplate": "%{text}<extra></extra>"}
        return [
            band(*self.judged.pieces, self.scale, self.limit, window, **fill),
            points.line(limit, window, name=name, line=dots, showlegend=False, **hover),
        ]

    def label(self, within: tuple[float, float], view: View) -> list[Trace]:
        """Label the newest headroom at the right of its line, between the two heights of ``within``."""
        bits = float(self.bits[self.judged.newest_column])
        if not np.isfinite(bits):
            return []
        at = min(max(float(self.limit[self.judged.newest_column]), within[0]), within[1])
        return [beside(at, f"headroom {bits:.1f} bits", "scale", view)]

    @property
    def caption(self) -> str:
        """Describe the newest headroom in a sentence, with a leading space.

        If the newest column has several samples, it is the headroom that all of them leave.
        """
        newest = self.judged.newest_column
        bits = float(self.bits[newest])
        if not np.isfinite(bits):
            return ""
        doublings = int(max(bits, 0))
        most = "at most " if self.judged.sampled else ""
        room_for = plural(doublings, "doubling") if doublings else "no doubling"
        samples = "sample" if self.judged.of("samples")[newest] == 1 else "samples"
        return f" Headroom at the newest {samples}: {most}{bits:.1f} bits, room for {room_for} before 65\u202f504."


def headroom(window: Window) -> Headroom | None:
    """Return the headroom in a window. None if no sampled gradient is on fp16's grid, or none holds a number."""
    judged = judge(window)
    if judged is None or judged.side == "off":
        return None
    cells, starts = judged.apart
    # If a column has samples at several scales, use the lowest, so that the limit is not too high.
    least = np.fmin.reduceat(scales(cells, window)[0], starts)
    scale = np.where(np.isfinite(least), np.log2(least), np.nan)
    found = Headroom(judged, scale, scale + _bits(judged))
    return found if np.isfinite(found.limit).any() else None


def _bits(judged: JudgedGradients) -> Floats:
    """Return the bits above the largest element, [c]; 0 if the only sample of a column overflowed.

    If some of several samples overflowed, use the largest finite element, to whole bits.
    """
    amax, histogram = judged.of("amax"), judged.of("histogram")
    top = BINS - 1 - (histogram[:, ::-1] > 0).argmax(1) + EXPONENT_MIN
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log2(FP16.max / amax)
    whole = np.where(histogram.any(1), np.maximum(FP16.exponent_max - top, 0), np.nan)
    whole[(judged.of("samples") == 1) & (judged.of("inf") > 0)] = 0.0
    return np.where(np.isfinite(exact) & (amax > 0), exact, whole)


def _said(bits: float) -> str:
    return f"headroom {bits:.1f} bits" if np.isfinite(bits) else "headroom not known"
