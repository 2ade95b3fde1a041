"""The documentation in a browser: from the dashboard to a page, its search, its theme, and nothing from elsewhere."""

from __future__ import annotations

from playwright.sync_api import expect

from web import pasting
from web.axe import violations
from web.reader import Reader


SCHEME = "data-md-color-scheme"
SIZES = """performance.getEntries().filter(each => each.initiatorType !== 'img')
    .reduce((sum, each) => sum + (each.encodedBodySize ?? 0), 0)"""


def test_a_reader_searches_from_the_dashboard_to_an_entry(passer_by: Reader) -> None:
    """From the header a pasted message leads to its fix in two clicks; each side keeps the theme of the other.

    One opens the search, where the message is pasted, and one the first result: the fix is seen. A page keeps the
    rules of axe. The campaign pastes ten messages and checks all pages.
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
    """With its search it takes at most 300 kB but for pictures; axe finds no fault, and nothing is off the screen."""
    assert 0 < reader.ask(SIZES) <= 300_000
    reader.catch_up()  # the theme lets the keyboard scroll wide code a moment after the page is there
    assert violations(reader.page) == []
    assert reader.ask("document.documentElement.scrollWidth <= innerWidth")
