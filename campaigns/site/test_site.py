"""Every documentation page and gallery report, in both themes and widths, and the search for error messages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from browser import chromium
from serving import Server
from web import pasting
from web.axe import violations
from web.reader import Reader, enter


DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(
    path.relative_to(DOCS).with_suffix(".html").as_posix().replace("README", "index")
    for path in (*DOCS.rglob("*.md"), *DOCS.glob("gallery/*.html"))
)
MOVED = "Promise.allSettled(document.getAnimations().map((each) => each.finished))"
"""Resolves once every animation has ended."""


@pytest.fixture(scope="module")
def reader(documentation: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with Server(tmp_path_factory.mktemp("site") / "ampmon") as server, chromium() as browser:
        yield Reader(enter(browser, server), server)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_keeps_the_rules_of_axe(reader: Reader, name: str) -> None:
    """axe finds no violation, nothing overflows the width, the console is empty, and no request leaves the server."""
    for theme, width in product(("light", "dark"), (1440, 390)):
        reader.theme(theme)
        reader.size(width)
        reader.load(f"docs/{name}")
        reader.ask(MOVED)
        assert violations(reader.page) == [], (theme, width)
        assert reader.ask("document.documentElement.scrollWidth <= innerWidth"), (theme, width)
    assert reader.page_errors() == []


def test_ten_pasted_messages_lead_to_their_fixes(reader: Reader) -> None:
    """Each takes two clicks: one opens the search, where the message is pasted, and one opens the first result."""
    reader.theme("light")
    reader.size(1440, 900)
    reader.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    reader.load("docs/index.html")
    for name in pasting.MESSAGES:
        pasting.to_its_fix(reader, name)
    assert len(set(pasting.MESSAGES)) == 10
