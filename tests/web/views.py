"""The page's largest views by name, and how a reader opens them. `campaigns/views.py` has the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from playwright.sync_api import expect

from web.reader import Reader


_WAITING = """[...document.querySelectorAll('main [data-figure]')].filter(panel =>
    panel.checkVisibility() && panel.getBoundingClientRect().top < innerHeight
    && !panel.querySelector('.plot:not([hidden]) .main-svg')
    && !/^(?!Loading)./.test(panel.querySelector('.empty:not([hidden])')?.textContent ?? '')
).map(panel => panel.dataset.figure)"""
"""The charts down to the end of the screen that are neither drawn nor say why."""
_CHARTS = "document.querySelectorAll('main [data-figure]').length"

PROJECT = "viewed"
"""The project of the runs that are shown. Lists are filtered by it."""

TABS = ("gradients", "activations", "whatif", "skips", "events", "system")
"""The tabs of a run's page, first the one that is open at the start."""

ALL_OF_IT = 12_000
"""Height in pixels at which every chart of a run is on screen and so is drawn."""


@dataclass(frozen=True)
class View:
    """``address`` is formatted with the ids of two runs. ``arrive`` waits until all of it is there."""

    address: str
    arrive: Callable[[Reader], None]

    def show(self, reader: Reader, *runs: UUID) -> None:
        reader.open(self.address.format(*runs))
        self.arrive(reader)


def settle(reader: Reader) -> None:
    """Wait until each chart on screen is drawn or says why not."""
    reader.wait("charts", lambda: reader.ask(_CHARTS) and reader.text("h1") not in {"", "…"})
    reader.wait("all charts", lambda: reader.ask(_WAITING) == [])


def of_list(reader: Reader) -> None:
    reader.wait("the runs", lambda: {*"⁰¹²³⁴⁵⁶⁷⁸⁹"} & {*reader.text("table.runs tbody")})


def _compare(reader: Reader) -> None:
    settle(reader)
    expect(reader.page.locator(".facts").first).to_be_visible()


def _drawer(reader: Reader) -> None:
    settle(reader)
    expect(reader.page.locator(".drawer h3")).to_have_text("head.weight")
    reader.page.locator(".drawer").scroll_into_view_if_needed()
    settle(reader)


VIEWS = {
    "list": View(f"#/?project={PROJECT}", of_list),
    "compare": View("#/compare?runs={0},{1}", _compare),
    "parameter": View("#/runs/{0}?parameter=head.weight", _drawer),
}
