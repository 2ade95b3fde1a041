"""The ranks of a run side by side: a strip for each, with its skips, its missing records and its disagreements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ampmon_server.charts.parts.chart import chart
from ampmon_server.charts.parts.layout import Figure, figure, ticks, y_axis
from ampmon_server.charts.parts.traces import Trace, markers, scatter, tick
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.series import Flags, Floats, Ints, RankRows
from ampmon_server.model.words import count, plural, power_of_two, pruned, steps


ROW_PIXELS = 24
NAMED = 16
"""At most this many ranks are named. With more, every second or third is, and so on, with the first that disagrees."""


@chart(
    title="Ranks",
    needs="updates",
    order=140,
    reads="ranks",
    tab="system",
    definitions={
        "rank": "One process of a training that runs on several devices. All must hold the same scale and skip the "
        "same steps, or their weights drift apart.",
        "disagreement": "A step at which a rank's scale or skip differs from that of the lowest rank with a record of "
        "the step.",
        "no record": "A gap in a strip: the rank has no record of the step, but another rank has.",
    },
)
def ranks(window: Window) -> Figure | str:
    """Draw a strip for each rank along the compared steps: all of the window, or some of each column."""
    source = window.source
    if len(source.ranks) < 2:
        return "This run has only one rank."
    lead, leaders = _lead(window)
    strips = [Strip(place, of, lead, leaders, window) for place, of in enumerate(source.ranks)]
    if not len(strips[0].every):
        return f"No step here can be compared between ranks.{pruned(source.rows_from)}"
    traces = [_presence(strips, window), *_skips(strips, window), *_disagreements(strips, window)]
    every = -(-len(strips) // NAMED)
    odd = next((strip.place for strip in strips if strip.differs.any()), 0)
    rank_at = {-each.place: f"rank {each.rank}" for each in strips[odd % every :: every]}
    return figure(
        traces,
        window,
        height=72 + ROW_PIXELS * min(max(len(strips), 3), NAMED),
        named=[each["name"] for each in traces],
        caption=_caption(strips, window),
        yaxis=y_axis(range=[0.7 - len(strips), 0.7], showgrid=False, **ticks(rank_at)),
    )


class Strip:
    """One rank's rows within a window, beside those of the lowest rank that has each step."""

    def __init__(
        self, place: int, of: RankRows, lead: Cells, leaders: Ints, window: Window
    ) -> None:
        self.place, self.rank = place, of.rank
        self.rows = _within(of.rows, window)
        self.x = window.x.at(self.rows, "first")
        # `lead` has each step of every rank.
        led = np.searchsorted(lead["first"], self.rows["first"])
        self.lead, self.leader = lead[led], leaders[led]
        mine, theirs = self.rows["scale_first"], self.lead["scale_first"]
        self.other_scale: Flags = (mine != theirs) & ~(np.isnan(mine) & np.isnan(theirs))
        self.other_skip: Flags = self.rows["skipped"] != self.lead["skipped"]
        self.differs: Flags = self.other_scale | self.other_skip
        compared = lead[np.isin(lead["first"], of.steps)]
        self.has = np.isin(compared["first"], self.rows["first"])
        self.every = window.x.at(compared, "first")

    def stretches(self) -> Iterator[tuple[float, float]]:
        """Yield the first and the last x of each stretch in which the rank has every compared step."""
        edges = np.diff(np.concatenate([[0], self.has, [0]]).astype(np.int8))
        for first, after in zip(np.flatnonzero(edges > 0), np.flatnonzero(edges < 0), strict=True):
            yield float(self.every[first]), float(self.every[after - 1])

    def say(self, at: int) -> str:
        """Describe the disagreement at a row."""
        row, lead = self.rows[at], self.lead[at]
        where = f"{steps(int(row['first']), int(row['first']))}: rank {self.rank}"
        differences = []
        if self.other_skip[at]:
            differences.append(
                f"{where} {'skipped' if row['skipped'] else 'did not skip'}, "
                f"rank {self.leader[at]} {'skipped' if lead['skipped'] else 'did not'}"
            )
        if self.other_scale[at]:
            mine, theirs = (power_of_two(float(each["scale_first"])) for each in (row, lead))
            differences.append(f"{where} at {mine}, rank {self.leader[at]} at {theirs}")
        return "<br>".join(differences)


def _within(rows: Cells, window: Window) -> Cells:
    x = window.x.at(rows, "first")
    return rows[(x >= window.low) & (x <= window.high)]


def _lead(window: Window) -> tuple[Cells, Ints]:
    """Return the rows of the lowest rank that has each step, in order of step, and the rank of each."""
    parts = [_within(each.rows, window) for each in window.source.ranks]
    owners = np.repeat([each.rank for each in window.source.ranks], [len(part) for part in parts])
    rows = np.concatenate(parts)
    # Ranks come in order, and of equal steps the first is found.
    _, first = np.unique(rows["first"], return_index=True)
    return rows[first], owners[first]


def _presence(strips: list[Strip], window: Window) -> Trace:
    """Draw a line for each stretch of each rank without a hole."""
    x: list[float] = []
    y: list[float] = []
    for strip in strips:
        for first, last in strip.stretches():
            x += [first, last, last]
            y += [-strip.place, -strip.place, np.nan]
    style: Trace = {"line": {"color": "role:normal", "width": 3}, "marker": {"size": 3}}
    keys = {"name": "has a record", "opacity": 0.5, "hoverinfo": "skip", **style}
    return scatter(window.plot(np.array(x)), np.array(y), "lines+markers", **keys)


def _skips(strips: list[Strip], window: Window) -> list[Trace]:
    found = [(strip, np.flatnonzero(strip.rows["skipped"])) for strip in strips]
    words = [
        f"{steps(step, step)}: rank {strip.rank} skipped"
        for strip, places in found
        for step in strip.rows["first"][places].tolist()
    ]
    return _points("skip", found, words, tick("skip", 12), window)


def _disagreements(strips: list[Strip], window: Window) -> list[Trace]:
    found = [(strip, np.flatnonzero(strip.differs)) for strip in strips]
    words = [strip.say(place) for strip, places in found for place in places.tolist()]
    mark = {"symbol": "diamond", "size": 9, "color": "role:ink"}
    return _points("disagreement", found, words, mark, window)


def _points(
    name: str,
    found: list[tuple[Strip, Ints]],
    words: list[str],
    mark: dict[str, Any],
    window: Window,
) -> list[Trace]:
    if not words:
        return []
    x = np.concatenate([strip.x[places] for strip, places in found])
    y: Floats = np.concatenate([np.full(len(places), -strip.place) for strip, places in found])
    return [markers(name, window.plot(x), y, words, mark, cliponaxis=False)]


def _caption(strips: list[Strip], window: Window) -> str:
    source, updates, looked = window.source, window.updates, len(strips[0].every)
    total, held = (
        int(each["n"].sum()) for each in (updates, updates[updates["last"] >= source.rows_from])
    )
    every = plural(source.ranks[0].of, "rank")
    some = f"{len(strips)} of {every}, those that last differed from the lowest rank first"
    of = every if source.ranks[0].of == len(strips) else some
    where = f"{of}, compared at {count(looked)} of {plural(total, 'step')}"
    zoom = (
        " (the ends and the newest skip of each column; zoom in for more)" if looked < held else ""
    )
    odd = [strip.rows["first"][strip.differs] for strip in strips]
    apart = np.unique(np.concatenate(odd))
    agree = (
        f"They disagree at {count(len(apart))} of them, first at step {count(int(apart[0]))}."
        if len(apart)
        else "They agree on the scale and on every skip."
    )
    holes = [
        f" Rank {strip.rank} has no record of {count(int((~strip.has).sum()))} of them."
        for strip in strips
        if not strip.has.all()
    ]
    more = f" {plural(len(holes) - 3, 'more rank')} too." if len(holes) > 3 else ""
    gone = pruned(source.rows_from if held < total else 0)
    return f"{where}{zoom}. {agree}{''.join(holes[:3])}{more}{gone}"
