"""The documentation in a browser: from the dashboard to a page, its search, its theme, and nothing from elsewhere."""

from __future__ import annotations

from typing import Literal

from playwright.sync_api import expect

from web import pasting
from web.axe import violations
from web.reader import Reader


SCHEME = "data-md-color-scheme"
SIZES = """performance.getEntries().filter(each => each.initiatorType !== 'img')
    .reduce((sum, each) => sum + (each.encodedBodySize ?? 0), 0)"""


def test_a_reader_searches_from_the_dashboard_to_an_entry(reader: Reader) -> None:
    """The header leads to the documentation, whose search finds an error message; each keeps the theme of the other."""
    body = reader.page.locator("body")
    reader.theme("light")
    reader.open()
    reader.page.locator("#theme").click()
    reader.page.get_by_role("link", name="Docs").click()
    expect(body).to_have_attribute(SCHEME, "slate")
    reader.page.get_by_title("Light theme").click()
    expect(body).to_have_attribute(SCHEME, "default")
    reader.page.locator(".md-search__button").click()
    reader.page.get_by_placeholder("Search").fill("Attempting to unscale FP16")
    reader.page.get_by_role("option").first.click()

    expect(reader.page.locator("h1")).to_have_text("Error messages¶")
    assert "unscale" in reader.ask("location.hash")
    expect(body).to_have_attribute(SCHEME, "default")
    reader.page.get_by_role("link", name="ampmon", exact=True).first.click()
    reader.wait("the dashboard", lambda: reader.ask("location.pathname") == "/")
    reader.wait("its theme", lambda: "Light" in reader.text("#theme"))


def test_a_pasted_message_leads_to_its_fix_in_two_clicks(reader: Reader) -> None:
    """One opens the search, where it is pasted, one the first result: the fix is seen. The campaign pastes ten."""
    pasting.begin(reader)
    pasting.to_its_fix(reader, pasting.MESSAGES[0])


def test_a_page_weighs_little_and_keeps_the_rules_of_axe(reader: Reader) -> None:
    """The page of all findings, on a desk. `make test-campaigns` checks others on a phone."""
    check_page(reader, "findings/index", "light", 1440)


def check_page(reader: Reader, name: str, theme: Literal["light", "dark"], width: int) -> None:
    """With its search it takes at most 300 kB but for pictures; axe finds no fault, and nothing is off the screen."""
    reader.theme(theme)
    reader.size(width)
    reader.load(f"docs/{name}.html")
    assert 0 < reader.ask(SIZES) <= 300_000
    assert violations(reader.page) == []
    assert reader.ask("document.documentElement.scrollWidth <= innerWidth")
