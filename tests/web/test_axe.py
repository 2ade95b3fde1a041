"""Accessibility by axe's rules, and the layout, of the page's views."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import pytest
from playwright.sync_api import expect

from batches import Trainer
from posted import post
from serving import Server
from web.axe import violations
from web.layout import faults
from web.reader import NOWHERE, Reader
from web.views import ALL_OF_IT, PROJECT, VIEWS


Look = tuple[Literal["light", "dark"], int]
LOOKS: list[Look] = [("light", 1440), ("dark", 390)]
"""Colors depend on the theme and the layout on the width, so these two cover both."""
IN_ONE = {"list": LOOKS[1], "parameter": LOOKS[0], "compare": LOOKS[1]}
"""Views that share their parts with the others except for dialogs, each with a look."""
PLANT = """style => {
    const planted = document.createElement("p");
    planted.textContent = "something too wide";
    planted.style = style;
    document.querySelector("main").append(planted);
}"""


@pytest.fixture(scope="session")
def shown(served: Server) -> list[UUID]:
    """Two runs of the shared server with data in every chart."""
    runs = []
    for name in ("one", "another"):
        trainer = Trainer(name=name, project=PROJECT)
        updates = trainer.updates(30, skipped=(20,), sampled=range(0, 30, 5))
        post(served, trainer.batch([*updates, trainer.scalars({"loss": 0.5})]))
        runs.append(trainer.run_id)
    return runs


@pytest.mark.parametrize("name", IN_ONE)
def test_a_view_keeps_the_rules_of_axe(shown: list[UUID], reader: Reader, name: str) -> None:
    """axe finds no violation and nothing is cut off. On a run this includes an open menu and the help."""
    check_view(shown, reader, name, IN_ONE[name])


def check_view(shown: list[UUID], reader: Reader, name: str, look: Look) -> None:
    theme, width = look
    reader.open(NOWHERE)  # else charts on screen would be redrawn for theme and size
    reader.theme(theme)
    reader.size(width, ALL_OF_IT)
    VIEWS[name].show(reader, *shown)
    assert faults(reader.page) == []
    if name == "parameter":
        reader.figure("scale").locator(".menu summary").click()
        expect(reader.figure("scale").get_by_role("button", name="CSV")).to_be_visible()
    assert violations(reader.page) == []
    if name == "parameter":
        reader.page.keyboard.press("?")
        expect(reader.page.locator("dialog[open]")).to_be_visible()
        assert violations(reader.page, "dialog[open]") == []


def test_signing_in_keeps_the_rules_of_axe(shown: list[UUID], passer_by: Reader) -> None:
    """axe finds no violation in the dialog of an expired session or on the sign-in page."""
    reader = passer_by
    reader.open(f"#/?project={PROJECT}")
    reader.wait("the list", lambda: len(reader.texts("table.runs tbody tr")) == len(shown))
    reader.ignore_page_errors("401")
    reader.page.context.clear_cookies()
    reader.ask("void dispatchEvent(new Event('online'))")
    expect(reader.page.get_by_role("dialog")).to_be_visible()
    assert violations(reader.page) == []
    reader.page.reload()
    expect(reader.page.get_by_role("heading", name="Sign in to ampmon")).to_be_visible()
    assert violations(reader.page) == []


def test_a_violation_is_noticed(passer_by: Reader) -> None:
    """A button without a name, pale text, and text that is too wide or cut off are each reported."""
    reader = passer_by
    reader.open()
    reader.wait("words", lambda: reader.text("h1") and reader.text("#connection"))
    reader.ask("document.querySelector('main').append(document.createElement('button'))")
    pale = "document.querySelectorAll('header.bar, #connection').forEach"
    reader.ask(f"{pale}(one => one.style.color = '#eee')")
    found = violations(reader.page)
    reader.ask(f"{pale}(one => one.removeAttribute('style'))")
    assert any(each.startswith("button-name") for each in found)
    assert any(each.startswith("color-contrast") for each in found)

    for style in ("width: 3000px", "width: 20px; overflow: hidden; white-space: nowrap"):
        reader.page.evaluate(PLANT, style)
    misplaced = faults(reader.page, patience_s=0)
    assert any(each.startswith("sticks out: p") for each in misplaced)
    assert any(each.startswith("cut off: p") for each in misplaced)
