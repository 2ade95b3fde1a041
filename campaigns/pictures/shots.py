"""The views to picture, by name: how a reader opens each, and whether its whole height is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from playwright.sync_api import expect

from campaigns.extremes import EXTREMES, FROM_THE_RIGHT, MARKUP
from campaigns.pictures import hero
from campaigns.pictures.trained import DEMO, LONG, training
from campaigns.views import VIEWS
from web.reader import Reader
from web.views import ALL_OF_IT, TABS, settle


Runs = dict[str, UUID]
DESK, PHONE = (1440, 1000), (390, 844)
LIVE_UPDATES = 100
CHARTS_HEIGHT = 1600
WINDOW = {"nothing found", "menu", "help", "finding"}
"""Views that need only a window's height."""
IN_A_PROJECT = {"list", "asked to delete"}
"""Views of runs that only tests have."""
SHORT = {MARKUP: "markup", FROM_THE_RIGHT: "from the right", "x" * 200: "long name"}


@dataclass(frozen=True)
class Shot:
    """``come`` opens the view. ``whole`` shows its full height, not only one screen."""

    come: Callable[[Reader, Runs], None]
    whole: bool = True

    def arrange(self, reader: Reader, runs: Runs, width: int) -> None:
        """Open the view on a screen of this width."""
        screen = DESK[1] if width == DESK[0] else PHONE[1]
        reader.size(width, ALL_OF_IT if self.whole else screen)
        self.come(reader, runs)
        if self.whole:
            reader.size(
                width, reader.ask("Math.ceil(document.body.getBoundingClientRect().height)")
            )
            reader.page.wait_for_timeout(300)  # charts adapt to the new size


def _run(name: str, query: str = "") -> Shot:
    def come(reader: Reader, runs: Runs) -> None:
        reader.open(f"#/runs/{runs[name]}{query}")
        settle(reader)

    return Shot(come)


def _top(reader: Reader, runs: Runs, name: str = "planted_overflow") -> None:
    reader.open(f"#/runs/{runs[name]}")
    reader.wait("the scale", reader.points)
    reader.wait("a verdict", lambda: reader.text(".findings .verdict"))


def _compared(reader: Reader, runs: Runs) -> None:
    VIEWS["compare"].show(reader, runs["planted_overflow"], runs[DEMO])


def _live(reader: Reader, runs: Runs) -> None:
    """The newest updates of a running training."""
    with training(reader.server):
        running = reader.wait("a run", lambda: reader.server.get("/runs?status=running")["runs"])
        reader.open(f"#/runs/{running[0]['run_id']}?follow=200")
        reader.wait("its updates", lambda: reader.newest() > LIVE_UPDATES)


def _toast(reader: Reader, runs: Runs) -> None:
    _top(reader, runs)
    reader.page.keyboard.press("k")
    reader.wait("a skip", lambda: "start=" in reader.page.url)
    reader.page.keyboard.press("c")
    expect(reader.page.locator(".toast")).not_to_be_empty()


def _list(reader: Reader, _: Runs) -> None:
    reader.open("#/")
    reader.wait("the runs", lambda: {*"⁰¹²³⁴⁵⁶⁷⁸⁹"} & {*reader.text("table.runs tbody")})


def _trained(reader: Reader, _: Runs) -> None:
    """The runs of the recipes."""
    reader.open("#/?project=default")
    reader.wait("the scales", lambda: reader.page.locator(".sparkline path[d]").count() > 5)


def _charts(reader: Reader, runs: Runs) -> None:
    """The first charts, from the scale to the exponents."""
    reader.size(DESK[0], CHARTS_HEIGHT)
    reader.open(f"#/runs/{runs[DEMO]}")
    reader.wait("the scale", reader.points)
    reader.ask("scrollTo(0, document.querySelector('.charts').getBoundingClientRect().top)")
    reader.wait("the exponents", lambda: reader.plot("exponents", "plot._fullData?.length"))


def _chosen(reader: Reader, runs: Runs) -> None:
    """Two runs selected in the list."""
    _list(reader, runs)
    for place in (0, 1):
        reader.page.locator("table.runs input").nth(place).check()


def _view(name: str) -> Shot:
    def come(reader: Reader, runs: Runs) -> None:
        screen = reader.page.viewport_size
        assert screen is not None
        reader.size(screen["width"], ALL_OF_IT)  # a view is settled once all of it is drawn
        VIEWS[name].show(reader, runs["planted_overflow"], runs[DEMO])
        reader.size(screen["width"], screen["height"])

    return Shot(come, name not in WINDOW)


def _eight(reader: Reader, runs: Runs) -> None:
    trained = [str(each) for name, each in runs.items() if name not in EXTREMES][:8]
    reader.open(f"#/compare?runs={','.join(trained)}")
    settle(reader)


SHOTS: dict[str, Shot] = {
    **{name: _view(name) for name in VIEWS if name not in IN_A_PROJECT},
    "list": Shot(_list, whole=False),
    "list, trained": Shot(_trained, whole=False),
    "list, two chosen": Shot(_chosen, whole=False),
    "hero": Shot(partial(_top, name=hero.NAME), whole=False),
    "run, top": Shot(_top, whole=False),
    "run, charts": Shot(_charts, whole=False),
    "run, toast": Shot(_toast, whole=False),
    "compare, top": Shot(_compared, whole=False),
    "live": Shot(_live, whole=False),
    "demo": _run(DEMO),
    **{f"demo, {tab}": _run(DEMO, f"?tab={tab}") for tab in TABS[1:]},
    "ranks": _run("ddp", "?tab=system"),
    "activations": _run("activation_gradients", "?tab=activations"),
    "scalers": _run("several_models"),
    "disabled": _run("bf16_disabled"),
    "stretch": _run("planted_overflow", "?start=15&stop=45"),
    "time": _run("planted_overflow", "?x=time"),
    "compare eight": Shot(_eight),
    "long": _run(f"{LONG} updates"),
    **{SHORT.get(name, name): _run(name) for name in EXTREMES},
}
