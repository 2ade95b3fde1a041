"""Every view of the page by name, and how a reader opens it."""

from __future__ import annotations

from playwright.sync_api import expect

from web import views
from web.reader import Reader
from web.views import PROJECT, View, of_list, settle


def _nothing_found(reader: Reader) -> None:
    reader.wait("the words", lambda: len(reader.text("main")) > 20)


def _help(reader: Reader) -> None:
    settle(reader)
    reader.page.keyboard.press("?")
    expect(reader.page.locator("dialog[open]")).to_be_visible()


def _deleting(reader: Reader) -> None:
    of_list(reader)
    reader.page.locator("table.runs input").first.check()
    reader.page.get_by_role("button", name="Delete…").click()
    expect(reader.page.locator("dialog[open]")).to_be_visible()


def _menu(reader: Reader) -> None:
    settle(reader)
    reader.figure("scale").locator(".menu summary").click()
    expect(reader.figure("scale").get_by_role("button", name="CSV")).to_be_visible()


def _alerts(reader: Reader) -> None:
    expect(reader.page.locator(".alerts-page :is(.first, section):visible").first).to_be_visible()


def _finding(reader: Reader) -> None:
    expect(reader.page.locator("h1")).to_be_visible()


VIEWS = {
    **views.VIEWS,
    "nothing found": View("#/?project=nobody-has-this", _nothing_found),
    "asked to delete": View(f"#/?project={PROJECT}", _deleting),
    "run": View("#/runs/{0}", settle),
    "menu": View("#/runs/{0}", _menu),
    "help": View("#/runs/{0}", _help),
    "alerts": View("#/alerts", _alerts),
    "finding": View("findings/skip_rate", _finding),
    "error messages": View("findings/errors", _finding),
}
