"""Shared parts of charts of several runs: a colour and a dash for each run, labels, and one x axis. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any, TypeAlias

from ampmon_server.charts.parts.chart import NO_USER_STEPS, nothing_here, titled
from ampmon_server.charts.parts.layout import (
    LOOK,
    Figure,
    beside,
    escaped,
    figure,
    spread,
    ticks,
    x_axis,
)
from ampmon_server.charts.parts.source import Source, View
from ampmon_server.charts.parts.traces import Trace
from ampmon_server.charts.parts.window import Window, cut
from ampmon_server.model.aggregates.departure import BaselineBand, Departure
from ampmon_server.model.names import shortened


RUNS_MAX, COLOURS = 20, 8
"""With more runs than colours, colours repeat with other dashes."""
DASHES = (
    "solid",
    "dash",
    "dot",
    "dashdot",
    "longdash",
    "longdashdot",
    "8px 3px 2px 3px",
    "2px 6px",
)
NAME_MAX, LINE_MAX = 12, 18
"""The letters that fit beside a plot: of a name, and with its value. On hover, a name twice as long is still whole."""
LABEL = 16
"""The height of a label beside a plot, in pixels."""
NAMED_MAX = 4
"""A legend of more runs would be taller than a phone's plot. The list of the runs shows their lines then."""
_SECOND = 1_000_000
_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200)
_STRIDES = (
    *(each * 1000 for each in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(each * _SECOND for each in _SECONDS),
    *(each * 86400 * _SECOND for each in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)
"""Distances between ticks, in us."""
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the compared runs: its name, the place of its colour, and its data.

    ``started`` is its start in us since the epoch; on a time axis, x is the time since then. ``names`` are those of all
    runs. ``band`` is the band of the baseline, and ``left`` is where another run leaves it. Only the chart of logged
    values gets these two.
    """

    name: str
    place: int
    source: Source
    started: int = 0
    names: Sequence[str] = ()
    band: BaselineBand | None = None
    left: Departure | None = None

    @property
    def role(self) -> str:
        return f"run-{self.place % COLOURS + 1}"

    @property
    def label(self) -> str:
        """The name beside a plot: escaped, isolated in text direction, and shortened."""
        return self.beside("")

    def beside(self, value: str) -> str:
        """Return the name and a value in one line beside a plot. Only the name is shortened."""
        name = self.within(min(NAME_MAX, LINE_MAX - len(value)))
        return f"{escaped(name)} {value}".strip()

    def within(self, letters: int) -> str:
        """Return the name, isolated in text direction and shortened to ``letters``.

        If that is the same as for other names, leave out the first words of all these.
        """
        said = shortened(self.name, letters)
        alike = {each for each in self.names if shortened(each, letters) == said} - {self.name}
        if alike and (cut := shared(self.name, alike)):
            said = shortened(f"…{self.name[cut:]}", letters)
        return f"\u2068{said}\u2069"

    @property
    def line(self) -> dict[str, Any]:
        return {
            "color": f"role:{self.role}",
            "width": 1.5,
            "dash": DASHES[(self.place + self.place // COLOURS) % len(DASHES)],
        }


def shared(name: str, others: Iterable[str]) -> int:
    """Return how many first letters of a name, in whole words, all ``others`` begin with as well. It keeps its last."""
    alike = commonprefix([name[:-1], *others])  # noqa: RUF071 - no paths
    return len(re.split(r"[^\W_]*$", alike)[0])


ComparedChart: TypeAlias = Callable[[Sequence[Compared], View], Figure]


def side_by_side(
    title: str, definitions: Mapping[str, str]
) -> Callable[[Callable[[Sequence[Compared], View], Figure | str]], ComparedChart]:
    """Declare a chart of several runs, drawn by a function that returns a figure, or why it drew nothing."""

    def declare(draw: Callable[[Sequence[Compared], View], Figure | str]) -> ComparedChart:
        return lambda runs, view: titled(title, definitions, draw(runs, view))

    return declare


def frame_of(ends: Sequence[tuple[int, float]], view: View) -> Window:
    """Return an empty window around windows with these ends."""
    low, high = min((low for low, _ in ends), default=0), max((high for _, high in ends), default=0)
    return replace(cut(Source(), view), low=low, high=high)


def nothing_of(runs: Sequence[Compared], view: View, what: str, before: str) -> str:
    """Explain why nothing of any run is drawn."""
    if all(ownless(run, view) for run in runs):
        return NO_USER_STEPS
    return nothing_here(view, what, before)


def ownless(run: Compared, view: View) -> bool:
    """Whether x is the user's own step and the run has none."""
    return view.x == "user" and run.source.user is None


def left_out(runs: Sequence[Compared], drawn: Sequence[Compared], view: View, what: str) -> str:
    """Return sentences about the runs that have no ``what`` in view."""
    places = {run.place for run in drawn}
    gone = [run for run in runs if run.place not in places]
    own, others = ([run for run in gone if ownless(run, view) is own] for own in (True, False))
    return without("because they logged no step", own) + without(
        f"because they have no {what} in view", others
    )


def without(why: str, runs: Sequence[Compared]) -> str:
    """Return a sentence, with a leading space, about runs that are not drawn. Empty if there are none."""
    names = ", ".join(run.within(2 * NAME_MAX) for run in runs)
    return f" Not drawn, {why}: {names}." if runs else ""


def chart(
    traces: list[Trace],
    runs: Sequence[Compared],
    frame: Window,
    *,
    anchor: str = "y",
    **layout: Any,
) -> Figure:
    """Draw a chart of several runs.

    A phone has no room for labels beside the plot, so it gets a legend if that fits above (`NAMED_MAX`).
    """
    view = frame.view
    legend = view.narrow and len(runs) <= NAMED_MAX
    named = [hovered(run)["name"] for run in runs] if legend else []
    if view.narrow:
        layout["annotations"] = []
        # Each run is a group. With a gap between groups, the legend would be higher than the room above the plot.
        layout["legend"] = {**LOOK["legend"], "tracegroupgap": 0}
    axis = x_axis(frame) | {"anchor": anchor}
    layout["xaxis"] = axis | elapsed(frame, max(3, axis["nticks"])) if view.x == "time" else axis
    return figure(traces, frame, named=named, hovermode="closest", **layout)


def hovered(run: Compared) -> dict[str, Any]:
    """The keys of a trace that name its run on hover and in the legend."""
    return {
        "name": f"\u2068{escaped(run.name)}\u2069" if len(run.name) <= 2 * NAME_MAX else run.label,
        "hoverlabel": {"namelength": -1},
        "legendgroup": f"run-{run.place + 1}",
        "showlegend": True,
    }


def tall(runs: int, least: int, panels: int = 1) -> int:
    """Return the height of a chart in which each panel has room for a label of every run."""
    return max(least, 48 + panels * (LABEL + 2) * runs)


def apart(
    labels: Sequence[tuple[float, str, Compared]],
    span: tuple[float, float],
    pixels: float,
    view: View,
    **keys: Any,
) -> list[dict[str, Any]]:
    """Place labels beside a plot that shows ``span`` on ``pixels`` pixels.

    Labels move if they would overlap or reach above the plot.
    """
    gap = (span[1] - span[0]) * LABEL / pixels
    ordered = sorted(labels, key=lambda label: label[0])
    heights = spread([height for height, _, _ in ordered], gap, span[1])
    return [
        beside(height, words, run.role, view, **keys)
        for height, (_, words, run) in zip(heights, ordered, strict=True)
    ]


def elapsed(frame: Window, most: int) -> dict[str, Any]:
    """Return an axis of the time since each run's start, in ms, with at most ``most`` ticks at round times.

    With 3 or more there is always a tick, as each stride is at most 2.5 times the one before.
    """
    length = max(frame.high - frame.low, 1)
    stride = next((each for each in _STRIDES if length // each < most), _STRIDES[-1])
    strides = range(math.ceil(frame.low / stride), math.floor(frame.high / stride) + 1)
    name_at = {each * stride / 1000: _duration(each * stride) for each in strides}
    pad = length / 400
    return {
        "type": "linear",
        "range": [(frame.low - pad) / 1000, (frame.high + pad) / 1000],
        "title": {"text": "time since the start of each run", "standoff": 4},
        **ticks(name_at),
        "tickformat": "",
        "unifiedhovertitle": {"text": "%{x|elapsed} since the start"},
    }


def _duration(time: int) -> str:
    """Format a time in us: "500 ms", "1.5 s", and from a minute on in whole units down to seconds, "−3 h 40 min"."""
    rest, said = abs(time), []
    for size, unit in _UNITS:
        amount, rest = divmod(rest, size * _SECOND)
        if amount:
            said.append(f"{amount}\u202f{unit}")
    if rest:
        size, unit = (_SECOND, "s") if said or rest >= _SECOND else (1000, "ms")
        said.append(f"{rest / size:g}\u202f{unit}")
    return ("−" if time < 0 else "") + (" ".join(said) or "0")
