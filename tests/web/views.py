"""Every view of the page by name, and how a reader comes to it. Knows nothing of what is looked for there."""

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
"""The charts down to the end of the screen that are neither drawn nor say why they are not."""
_CHARTS = "document.querySelectorAll('main [data-figure]').length"

PROJECT = "viewed"
"""Of the runs that are shown: where there is a list it is of these."""

TABS = ("gradients", "activations", "whatif", "skips", "events", "system")
"""Of a run's page, the one that is open at first before the others."""

ALL_OF_IT = 12_000
"""Pixels of height: every chart of a run is on the screen, and so it is drawn."""


@dataclass(frozen=True)
class View:
    """``address`` is formatted with the ids of two runs; ``arrive`` waits until all of it is there."""

    address: str
    arrive: Callable[[Reader], None]

    def show(self, reader: Reader, *runs: UUID) -> None:
        reader.open(self.address.format(*runs))
        self.arrive(reader)


def settle(reader: Reader) -> None:
    """Wait until each chart on the screen is drawn, or says why it is not."""
    reader.wait("charts", lambda: reader.ask(_CHARTS) and reader.text("h1") not in {"", "…"})
    reader.wait("all charts", lambda: reader.ask(_WAITING) == [])


def _list(reader: Reader) -> None:
    reader.wait("the runs", lambda: {*"⁰¹²³⁴⁵⁶⁷⁸⁹"} & {*reader.text("table.runs tbody")})


def _nothing_found(reader: Reader) -> None:
    reader.wait("the words", lambda: len(reader.text("main")) > 20)


def _help(reader: Reader) -> None:
    settle(reader)
    reader.page.keyboard.press("?")
    expect(reader.page.locator("dialog[open]")).to_be_visible()


def _compare(reader: Reader) -> None:
    settle(reader)
    expect(reader.page.locator(".facts").first).to_be_visible()


def _deleting(reader: Reader) -> None:
    _list(reader)
    reader.page.locator("table.runs input").first.check()
    reader.page.get_by_role("button", name="Delete…").click()
    expect(reader.page.locator("dialog[open]")).to_be_visible()


def _menu(reader: Reader) -> None:
    settle(reader)
    reader.figure("scale").locator(".menu summary").click()
    expect(reader.figure("scale").get_by_role("button", name="CSV")).to_be_visible()


def _drawer(reader: Reader) -> None:
    settle(reader)
    expect(reader.page.locator(".drawer h3")).to_have_text("head.weight")
    reader.page.locator(".drawer").scroll_into_view_if_needed()
    settle(reader)


def _alerts(reader: Reader) -> None:
    expect(reader.page.locator(".alerts-page :is(.first, section):visible").first).to_be_visible()


def _finding(reader: Reader) -> None:
    expect(reader.page.locator("h1")).to_be_visible()


VIEWS = {
    "list": View(f"#/?project={PROJECT}", _list),
    "nothing found": View("#/?project=nobody-has-this", _nothing_found),
    "compare": View("#/compare?runs={0},{1}", _compare),
    "asked to delete": View(f"#/?project={PROJECT}", _deleting),
    "run": View("#/runs/{0}", settle),
    "parameter": View("#/runs/{0}?parameter=head.weight", _drawer),
    "menu": View("#/runs/{0}", _menu),
    "help": View("#/runs/{0}", _help),
    "alerts": View("#/alerts", _alerts),
    "finding": View("findings/skip_rate", _finding),
    "error messages": View("findings/errors", _finding),
}
