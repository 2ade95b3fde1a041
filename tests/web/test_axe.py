"""Nobody is kept out: axe's rules on every view of the page, in both themes, and all words on a phone and a desk."""

from __future__ import annotations

from functools import partial
from typing import Literal
from uuid import UUID

import pytest
from playwright.sync_api import expect

from extremes import make
from posted import post
from serving import Server
from web.axe import violations
from web.layout import faults
from web.reader import NOWHERE, Reader
from web.views import ALL_OF_IT, PROJECT, TABS, VIEWS, settle


LOOKS: list[tuple[Literal["light", "dark"], int]] = [("light", 1440), ("dark", 390)]
"""Colors depend on the theme and the layout on the width, so these two cover both."""
BOTH = ["list", "parameter", "compare"]
"""Views that are checked in each look, with every chart. They share their parts with the others but for dialogs."""
ONE = {"alerts": 1, "nothing found": 1, "asked to delete": 1, "finding": 0, "error messages": 1}
"""Views that are checked in one of the looks, on one screen."""
SHOWN = ("not finite", "ranks that disagree")


@pytest.fixture(scope="module")
def shown(served: Server) -> list[UUID]:
    """Two runs of the shared server that have something in every chart."""
    runs = make(partial(post, served), SHOWN, PROJECT)
    return [runs[name] for name in SHOWN]


@pytest.mark.parametrize("name", BOTH)
def test_a_view_keeps_the_rules_of_axe_in_each_look(
    shown: list[UUID], reader: Reader, name: str
) -> None:
    """axe finds no fault, and nothing is cut off; on a run, axe neither in an open menu, the help and a tab.

    A tab is checked in one of the looks: tabs share their tables, fields and charts.
    """
    for look, (theme, width) in enumerate(LOOKS):
        reader.open(
            NOWHERE
        )  # charts on the screen would be drawn again for the theme and again for the size
        reader.theme(theme)
        reader.size(width, ALL_OF_IT)
        VIEWS[name].show(reader, *shown)
        assert faults(reader.page) == []
        if name == "parameter":
            reader.figure("scale").locator(".menu summary").click()
            expect(reader.figure("scale").get_by_role("button", name="CSV")).to_be_visible()
        assert violations(reader.page) == []
        for tab in TABS[look + 1 :: 2] if name == "parameter" else ():
            reader.tab(tab)
            settle(reader)
            assert violations(reader.page, f"#in-{tab}") == []
    if name == "parameter":
        reader.page.keyboard.press("?")
        expect(reader.page.locator("dialog[open]")).to_be_visible()
        assert violations(reader.page, "dialog[open]") == []


@pytest.mark.parametrize("name", ONE)
def test_a_small_view_keeps_the_rules_of_axe(shown: list[UUID], reader: Reader, name: str) -> None:
    """axe finds no fault in names, roles, order and contrast; at neither width is anything cut off."""
    theme, width = LOOKS[ONE[name]]
    reader.theme(theme)
    reader.size(width)
    VIEWS[name].show(reader, *shown)
    assert violations(reader.page) == []
    for _, each in LOOKS:
        reader.size(each)
        assert faults(reader.page) == []


def test_no_view_is_left_out() -> None:
    """Each view of the page is checked above; the view of a parameter has those of its run in it."""
    assert {*BOTH, *ONE, "run", "menu", "help"} == set(VIEWS)


def test_signing_in_keeps_the_rules_of_axe(shown: list[UUID], reader: Reader) -> None:
    """axe finds no fault in the dialog of an expired session, nor in the page of a stranger."""
    reader.open(f"#/runs/{shown[0]}")
    reader.wait("the chart of the scale", reader.points)
    reader.forgive("401")
    reader.page.context.clear_cookies()
    reader.ask("void dispatchEvent(new Event('online'))")
    expect(reader.page.get_by_role("dialog")).to_be_visible()
    assert violations(reader.page) == []
    reader.page.reload()
    expect(reader.page.get_by_role("heading", name="Sign in to ampmon")).to_be_visible()
    assert violations(reader.page) == []
    reader.page.context.request.get(reader.server.login_link(), max_redirects=0)
    reader.load()


def test_a_violation_is_noticed(reader: Reader) -> None:
    """A button without a name, and words that are too pale, are told."""
    reader.open()
    reader.wait("words", lambda: reader.text("h1") and reader.text("#connection"))
    reader.ask("document.querySelector('main').append(document.createElement('button'))")
    pale = "document.querySelectorAll('header.bar, #connection').forEach"
    reader.ask(f"{pale}(one => one.style.color = '#eee')")
    found = violations(reader.page)
    reader.ask(f"{pale}(one => one.removeAttribute('style'))")
    assert any(each.startswith("button-name") for each in found)
    assert any(each.startswith("color-contrast") for each in found)
