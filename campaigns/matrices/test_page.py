"""The page in every view, look and tab, with every extreme run, and below a path that nginx keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal
from uuid import UUID

import pytest
from playwright.sync_api import expect

from batches import Trainer
from extremes import EXTREMES, make
from nginx import Nginx
from posted import post
from serving import Server
from tools import NGINX
from web import test_axe, test_documentation, test_embedding, test_extremes
from web.axe import violations
from web.layout import faults
from web.reader import NOWHERE, Reader
from web.test_axe import shown
from web.views import ALL_OF_IT, TABS, VIEWS, settle


__all__ = ["shown"]  # a fixture
ONE = {"alerts": 1, "nothing found": 1, "asked to delete": 1, "finding": 0, "error messages": 1}
"""Views that are checked in one of the looks, on one screen."""
OTHERS = [name for name in EXTREMES if name not in test_extremes.SHOWN]


@pytest.fixture(scope="module")
def extreme(served: Server) -> dict[str, UUID]:
    """All of them, by name."""
    return make(partial(post, served))


@pytest.mark.parametrize("name", OTHERS)
def test_each_extreme_has_a_sensible_picture(
    extreme: dict[str, UUID], reader: Reader, name: str
) -> None:
    """On a phone every chart is drawn or says why not, and nothing is cut off or sticks out."""
    test_extremes.test_each_extreme_has_a_sensible_picture(extreme, reader, name)


def test_the_list_bears_every_name(extreme: dict[str, UUID], reader: Reader) -> None:
    """One list shows all of them as text at each width, and nothing is cut off or sticks out."""
    test_extremes.test_the_list_bears_every_name(extreme, reader)


@pytest.mark.parametrize("name", ONE)
def test_a_small_view_keeps_the_rules_of_axe(shown: list[UUID], reader: Reader, name: str) -> None:
    """axe finds no fault in names, roles, order and contrast; at neither width is anything cut off."""
    theme, width = test_axe.LOOKS[ONE[name]]
    reader.theme(theme)
    reader.size(width)
    VIEWS[name].show(reader, *shown)
    assert violations(reader.page) == []
    for _, each in test_axe.LOOKS:
        reader.size(each)
        assert faults(reader.page) == []


@pytest.mark.parametrize("look", [0, 1])
def test_the_tabs_of_a_run_keep_the_rules_of_axe(
    shown: list[UUID], reader: Reader, look: int
) -> None:
    """Each is checked in one of the looks: tabs share their tables, fields and charts."""
    theme, width = test_axe.LOOKS[look]
    reader.open(NOWHERE)
    reader.theme(theme)
    reader.size(width, ALL_OF_IT)
    VIEWS["run"].show(reader, *shown)
    for tab in TABS[look + 1 :: 2]:
        reader.tab(tab)
        settle(reader)
        assert violations(reader.page, f"#in-{tab}") == []


def test_every_skip_can_be_listed(reader: Reader) -> None:
    """Asked for older ones again and again, the ledger has more of them than the server gives in one answer."""
    trainer = Trainer()
    post(reader.server, trainer.batch(trainer.updates(1260, skipped=range(1260))))
    reader.open(f"#/runs/{trainer.run_id}")
    reader.tab("skips")
    rows = reader.page.locator("[data-ledger=skips] tbody tr")
    older = reader.page.get_by_role("button", name="Older")
    for count in (10, 50, 250, 1250):
        reader.wait(f"{count} of them", lambda count=count: rows.count() == count)
        older.click()
    reader.wait("all of them", lambda: rows.count() == 1260)
    assert older.is_hidden()


def test_no_view_is_left_out() -> None:
    """Each view of the page is checked here or in the suite, where that of a parameter has those of its run in it."""
    assert {*test_axe.BOTH, *ONE, "run", "menu", "help"} == set(VIEWS)


@NGINX.needed
def test_the_page_works_under_a_path_that_nginx_keeps(
    new_server: Callable[..., Server],
    new_reader: Callable[..., Reader],
    tmp_path: Path,
) -> None:
    """Every request of the page stays below the path."""
    server = new_server(options=["--base-path", test_embedding.KEPT])
    proxy = Nginx.under_a_path(server, tmp_path)
    test_embedding.check_under_a_path(server, proxy, test_embedding.KEPT, new_reader)


@pytest.mark.parametrize("name", ["gallery", "python", "simulator"])
def test_a_page_of_the_documentation_keeps_the_rules_of_axe(reader: Reader, name: str) -> None:
    """It weighs little, axe finds no fault, and nothing is off a phone's screen."""
    theme: Literal["light", "dark"] = "dark" if name == "python" else "light"
    test_documentation.check_page(reader, name, theme, 390)


def test_a_report_of_the_gallery_opens_from_the_server(reader: Reader) -> None:
    """From the gallery's page one comes to a report, which draws with the page's Plotly under the server's policy."""
    reader.theme("dark")
    reader.load("docs/gallery.html")
    reader.page.get_by_role("link", name="Open the report").last.click()
    expect(reader.page.locator("[data-figure=norm] .plot-container")).to_be_visible()
    assert violations(reader.page) == []
