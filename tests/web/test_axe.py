"""Nobody is kept out: axe's rules on every view of the page, in both themes, on a phone and on a desk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest
from playwright.sync_api import expect

from extremes import make
from posted import post
from serving import Server
from web.axe import violations
from web.reader import DESK, Reader
from web.views import ALL_OF_IT, PROJECT, VIEWS


LOOKS = [("light", 1440), ("dark", 390)]
"""Colours hang on the theme and the layout on the width: not every pair is a look of its own."""
BOTH = {"list", "run", "compare"}
"""Seen in each look, with every chart. The other views share their parts: each is seen in one look, on one screen."""
SEEN = [
    (name, *look)
    for place, name in enumerate(VIEWS)
    for look in (LOOKS if name in BOTH else [LOOKS[place % len(LOOKS)]])
]
SHOWN = ("not finite", "ranks that disagree")


@pytest.fixture(scope="module")
def shown(served: Server) -> list[UUID]:
    """Two runs of the shared server that have something in every chart."""
    runs = make(partial(post, served), SHOWN, PROJECT)
    return [runs[name] for name in SHOWN]


@pytest.mark.parametrize(("name", "theme", "width"), SEEN)
def test_every_view_keeps_the_rules_of_axe(
    shown: list[UUID], reader: Reader, name: str, theme: str, width: int
) -> None:
    """Names, roles, order and contrast: axe has nothing against any view."""
    reader.theme("dark" if theme == "dark" else "light")
    reader.size(width, ALL_OF_IT if name in BOTH else DESK[1])
    VIEWS[name].show(reader, *shown)
    assert violations(reader.page) == []


def test_who_is_not_let_in_is_told_by_the_rules_of_axe(
    shown: list[UUID], new_reader: Callable[[Server], Reader], served: Server
) -> None:
    """The box over a run whose reader's session ended, and the page of someone who was never let in."""
    reader = new_reader(served)
    reader.open(f"#/runs/{shown[0]}")
    reader.wait("the chart of the scale", reader.points)
    reader.forgive("401")
    reader.page.context.clear_cookies()
    reader.ask("void dispatchEvent(new Event('online'))")
    expect(reader.page.get_by_role("dialog")).to_be_visible()
    assert violations(reader.page) == []
    reader.page.reload()
    expect(reader.page.get_by_role("heading", name="does not know you")).to_be_visible()
    assert violations(reader.page) == []


def test_an_empty_store_keeps_the_rules_of_axe(own_reader: Reader) -> None:
    """The lines that begin the first run are as open to everybody."""
    own_reader.open()
    own_reader.wait("the hint", lambda: "ampmon" in own_reader.text("main"))
    assert violations(own_reader.page) == []


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
