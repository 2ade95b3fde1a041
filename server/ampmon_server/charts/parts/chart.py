"""Declares a chart: its words, its place, what it reads, and what is said when there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ampmon_server.charts.parts.layout import Figure, empty
from ampmon_server.charts.parts.source import Source, View
from ampmon_server.charts.parts.window import Window, cut
from ampmon_server.model.words import count, steps


NO_USER_STEPS = "No logged step. Pass one with ampmon.log({...}, step=...), such as the epoch."

Reads: TypeAlias = Literal[
    "series",
    "updates",
    "newest",
    "ranks",
    "scalars",
    "parameters",
    "parameter",
    "sample",
    "modules",
    "scales",
    "replay",
]
"""What is read into a `Source`: the updates and gradients of the view alone ("series"), or less or more than that."""

Tab: TypeAlias = Literal["gradients", "activations", "whatif", "system"]

Draw: TypeAlias = Callable[[Window], "Figure | str"]
"""Draws a window, or returns the reason why there is nothing to draw and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: called with a source and a view, it returns the figure. ``definitions`` explain its words.

    ``draw`` gets only windows with what it ``needs``. ``order`` places the chart among the others of a report, a
    notebook or a tab, the lowest first. The page shows it in a ``tab``, unless it has its own place for it.
    ``choices`` are the query parameters with which the reader can change it. A ``sampled`` chart changes only with a
    sample, so a growing run redraws it less often. ``parameter``: it is drawn only for a chosen parameter.
    """

    draw: Draw
    title: str
    definitions: Mapping[str, str]
    needs: Literal["updates"] | None = None
    order: int = 1000
    reads: Reads = "series"
    tab: Tab | None = None
    choices: tuple[str, ...] = ()
    sampled: bool = False
    parameter: bool = False

    def __call__(self, source: Source, view: View) -> Figure:
        window = cut(source, view)
        lacking = self.needs == "updates" and not len(window.updates)
        drawn = why_no_updates(window) if lacking else self.draw(window)
        return titled(self.title, self.definitions, drawn)


def chart(**declared: Any) -> Callable[[Draw], Chart]:
    """Declare the chart that a function draws. The arguments are those of `Chart`."""
    return lambda draw: Chart(draw=draw, **declared)


def titled(title: str, definitions: Mapping[str, str], drawn: Figure | str) -> Figure:
    """Return what a chart drew, or a chart without data for the reason why it drew nothing, with its words."""
    figure = empty(drawn) if isinstance(drawn, str) else drawn
    meta = {"title": title, "definitions": definitions, **figure["layout"]["meta"]}
    return {**figure, "layout": {**figure["layout"], "meta": meta}}


def nothing_here(view: View, what: str, before: str) -> str:
    """Explain why no ``what`` is drawn: ``before`` for the whole run, else that none is in view."""
    if view.whole:
        return before
    if view.x == "time":
        return f"No {what} in this time range. Show the whole run, or zoom out."
    first, last = view.start or 0, None if view.stop is None else view.stop - 1
    whose = "logged " if view.x == "user" else ""
    where = (
        f"from {whose}step {count(first)} on" if last is None else f"in {whose}{steps(first, last)}"
    )
    return f"No {what} {where}. Show the whole run, or zoom out."


def why_no_updates(window: Window) -> str:
    if window.source.disabled:
        return (
            "This scaler is disabled, as it is for bf16 and on machines without a GPU: "
            "it scales nothing and skips nothing. Pass enabled=True to watch it work."
        )
    if window.view.x == "user" and window.source.user is None:
        return NO_USER_STEPS
    return nothing_here(
        window.view,
        "step",
        "No steps recorded. The first arrives when training calls scaler.step() and scaler.update().",
    )


def why_no_samples(window: Window) -> str:
    """Explain why no gradient is drawn, and what to do."""
    if window.source.disabled:
        return "This scaler is disabled: there are no scaled gradients to show."
    if window.view.x == "user" and window.source.user is None:
        return NO_USER_STEPS
    if len(window.gradients):
        return "The sampled gradients hold no elements. Check that the optimizer's parameters require gradients."
    return nothing_here(
        window.view,
        "sampled gradient",
        "No gradient sampled. ampmon samples at least every 128 steps and after each change of the scale; "
        "Config(every=1) samples every step. Streams of ampmon.stream have no gradients.",
    )
