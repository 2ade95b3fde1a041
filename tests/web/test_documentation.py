"""The documentation in a browser: its link from the dashboard, its search, theme and size."""

from __future__ import annotations

from playwright.sync_api import expect

from web import pasting
from web.axe import violations
from web.reader import Reader


SCHEME = "data-md-color-scheme"
SIZES = """performance.getEntries().filter(each => each.initiatorType !== 'img')
    .reduce((sum, each) => sum + (each.encodedBodySize ?? 0), 0)"""


def test_a_reader_searches_from_the_dashboard_to_an_entry(passer_by: Reader) -> None:
    """From the header a pasted message leads to its fix in two clicks, and each side keeps the other's theme.

    The campaign pastes ten messages and checks all pages.
    """
    reader = passer_by
    body = reader.page.locator("body")
    reader.size(1440, 900)
    reader.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    reader.theme("light")
    reader.open()
    reader.page.locator("#theme").click()
    reader.page.get_by_role("link", name="Docs").click()
    expect(body).to_have_attribute(SCHEME, "slate")
    reader.page.get_by_title("Light theme").click()
    expect(body).to_have_attribute(SCHEME, "default")
    check_page(reader)
    pasting.to_its_fix(reader, pasting.MESSAGES[0])

    expect(reader.page.locator("h1")).to_have_text("Error messages¶")
    expect(body).to_have_attribute(SCHEME, "default")
    reader.page.get_by_role("link", name="ampmon", exact=True).first.click()
    reader.wait("the dashboard", lambda: reader.ask("location.pathname") == "/")
    reader.wait("its theme", lambda: "Light" in reader.text("#theme"))


def check_page(reader: Reader) -> None:
    """A page with its search takes at most 300 kB without images, has no axe violation and fits the window's width."""
    assert 0 < reader.ask(SIZES) <= 300_000
    reader.catch_up()  # the theme makes wide code scrollable by keyboard shortly after the page has loaded
    assert violations(reader.page) == []
    assert reader.ask("document.documentElement.scrollWidth <= innerWidth")
