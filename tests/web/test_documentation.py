"""The documentation in a browser: from the dashboard to a page, its search, its theme, and nothing from elsewhere."""

from __future__ import annotations

from typing import Literal

import pytest
from playwright.sync_api import expect

from web.axe import violations
from web.reader import Reader


SCHEME = "document.body.dataset.mdColorScheme"


def test_a_reader_searches_from_the_dashboard_to_an_entry(reader: Reader) -> None:
    """The header leads to the documentation, whose search finds an error message, and its mark leads back."""
    reader.open()
    reader.page.get_by_role("link", name="Docs").click()
    reader.page.locator(".md-search__button").click()
    reader.page.get_by_placeholder("Search").fill("Attempting to unscale FP16")
    reader.page.get_by_role("option").first.click()

    expect(reader.page.locator("h1")).to_have_text("Error messages¶")
    assert "unscale" in reader.ask("location.hash")
    reader.page.get_by_role("link", name="ampmon", exact=True).first.click()
    reader.wait("the dashboard", lambda: reader.ask("location.pathname") == "/")


def test_the_theme_is_that_of_the_dashboard(reader: Reader) -> None:
    """The theme that a reader chose on the dashboard holds in the documentation, and the other way round."""
    reader.theme("light")
    reader.open()
    reader.page.locator("#theme").click()
    reader.load("docs/index.html")
    assert reader.ask(SCHEME) == "slate"
    reader.page.get_by_title("Light theme").click()
    reader.wait("light", lambda: reader.ask(SCHEME) == "default")
    reader.load("docs/measures.html")
    assert reader.ask(SCHEME) == "default"
    reader.open()
    reader.wait("its theme", lambda: "Light" in reader.text("#theme"))


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_a_page_keeps_the_rules_of_axe(
    reader: Reader, theme: Literal["light", "dark"], width: int
) -> None:
    """axe finds no fault in a page with code, tables and a picture, and nothing stands outside the screen."""
    reader.theme(theme)
    reader.size(width)
    for name in ("index", "findings/skip_rate", "python"):
        reader.load(f"docs/{name}.html")
        # The theme's own: it puts each copy button into a nav without a name.
        assert [each for each in violations(reader.page) if ".md-code__nav" not in each] == []
        assert reader.ask("document.documentElement.scrollWidth <= innerWidth")


def test_a_page_weighs_little(reader: Reader) -> None:
    """A page with its styles, scripts and search takes at most 300 kB, pictures not counted."""
    sizes = """performance.getEntries().filter(each => each.initiatorType !== 'img')
        .reduce((sum, each) => sum + (each.encodedBodySize ?? 0), 0)"""
    for name in ("index", "findings/skip_rate", "errors"):
        reader.load(f"docs/{name}.html")
        assert 0 < reader.ask(sizes) <= 300_000
