"""Nobody is kept out: axe's rules on every view of the page, in both themes, on a phone and on a desk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from axe_playwright_python.sync_playwright import Axe

from ampmon_server.settings import Settings
from extremes import make
from serving import Server
from web.reader import Reader
from web.views import ALL_OF_IT, VIEWS


LOOKS = [("light", 1440), ("dark", 390)]
"""Colours hang on the theme and the layout on the width: not every pair is a look of its own."""
BOTH = {"list", "run", "compare"}
"""Seen in each look; what else there is shares their parts, and takes turns."""
SEEN = [
    (name, *look)
    for place, name in enumerate(VIEWS)
    for look in (LOOKS if name in BOTH else [LOOKS[place % len(LOOKS)]])
]
SHOWN = ("not finite", "ranks that disagree")

Shown = tuple[Server, list[UUID]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """A server of two runs that have something in every chart."""
    server = Server(tmp_path_factory.mktemp("shown") / "ampmon")
    runs = make(Settings(data_directory=server.directory), SHOWN)
    server.start()
    yield server, [runs[name] for name in SHOWN]
    server.stop()


def violations(reader: Reader) -> list[str]:
    """What axe finds against the page as it stands: the rule, and where."""
    found = Axe().run(reader.page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {', '.join(str(node['target'][0]) for node in each['nodes'])}"
        for each in found
    ]


@pytest.mark.parametrize(("name", "theme", "width"), SEEN)
def test_every_view_keeps_the_rules_of_axe(
    shown: Shown, new_reader: Callable[[Server], Reader], name: str, theme: str, width: int
) -> None:
    """Names, roles, order and contrast: axe has nothing against any view."""
    server, runs = shown
    reader = new_reader(server)
    reader.theme("dark" if theme == "dark" else "light")
    reader.size(width, ALL_OF_IT)
    VIEWS[name].show(reader, *runs)
    assert violations(reader) == []


def test_an_empty_store_keeps_the_rules_of_axe(own_reader: Reader) -> None:
    """The lines that begin the first run are as open to everybody."""
    own_reader.open()
    own_reader.wait("the hint", lambda: "ampmon" in own_reader.text("main"))
    assert violations(own_reader) == []


def test_a_violation_is_noticed(reader: Reader) -> None:
    """A button without a name, and words that are too pale, are told."""
    reader.open()
    reader.wait("words", lambda: reader.text("h1") and reader.text("#connection"))
    reader.ask("document.querySelector('main').append(document.createElement('button'))")
    reader.ask("document.querySelector('header.bar').style.color = '#eee'")
    reader.ask("document.querySelector('#connection').style.color = '#eee'")
    found = violations(reader)
    assert any(each.startswith("button-name") for each in found)
    assert any(each.startswith("color-contrast") for each in found)
