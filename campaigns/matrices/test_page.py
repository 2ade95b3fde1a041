"""The page in every view, look and tab; the suite checks only one of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

import pytest

from batches import Trainer
from campaigns.extremes import make
from campaigns.views import VIEWS
from posted import post
from serving import Server
from web import test_axe, test_overview
from web.axe import violations
from web.layout import faults
from web.reader import NOWHERE, Reader
from web.test_alerts import ALERT, FIRST, alerting, failing
from web.views import ALL_OF_IT, PROJECT, TABS, settle


__all__ = ["alerting"]  # a fixture
SHOWN = ("not finite", "ranks that disagree")
ONE = {"alerts": 1, "nothing found": 1, "asked to delete": 1, "finding": 0, "error messages": 1}
"""Views checked in only one look, given by its index."""


@pytest.fixture(scope="module")
def shown(served: Server) -> list[UUID]:
    """Two runs of the shared server with data in every chart."""
    runs = make(partial(post, served), SHOWN, PROJECT)
    return [runs[name] for name in SHOWN]


@pytest.mark.parametrize("look", test_axe.LOOKS)
@pytest.mark.parametrize("name", test_axe.IN_ONE)
def test_a_view_keeps_the_rules_of_axe_in_each_look(
    shown: list[UUID], reader: Reader, name: str, look: test_axe.Look
) -> None:
    """axe finds no violation, and nothing is cut off. On a run this includes an open menu and the help."""
    test_axe.check_view(shown, reader, name, look)


@pytest.mark.parametrize("name", ONE)
def test_a_small_view_keeps_the_rules_of_axe(shown: list[UUID], reader: Reader, name: str) -> None:
    """axe finds no violation in names, roles, order and contrast; nothing is cut off at either width."""
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
    """axe finds no violation in any tab. One look each is enough: tabs share their tables, fields and charts."""
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
    """ "Older" loads the ledger page by page, beyond the number of skips in one answer."""
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
    """This module and the suite together check every view."""
    assert {*test_axe.IN_ONE, *ONE, "run", "menu", "help"} == set(VIEWS)


@pytest.mark.parametrize("values", [{"loss": 0.5}, {}])
@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_nothing_moves_once_the_first_chart_is_drawn(
    reader: Reader, size: tuple[int, int], values: dict[str, float]
) -> None:
    """Once the first chart is drawn, nothing on a run's first screen moves, with or without a logged value."""
    reader.size(*size)
    test_overview.check_that_nothing_moves(reader, test_overview.trained(reader, **values))


def test_on_a_phone_the_stack_fits_one_screen(reader: Reader) -> None:
    """The stack of charts, from toolbar to axis, is at most 844 pixels high."""
    reader.size(390, 844)
    reader.open(test_overview.trained(reader, loss=0.5))
    settle(reader)
    (box,) = test_overview.boxes_of(reader, ".charts")
    assert box["height"] <= 844


def test_a_wide_screen_has_two_columns(reader: Reader) -> None:
    """From 1800 pixels on, heatmap and tabs are beside the stack; on narrower screens they are below it."""
    address = test_overview.trained(reader)
    for width, beside in ((1800, True), (1790, False)):
        reader.size(width, 900)
        reader.open(address)
        settle(reader)
        stack, heatmap = test_overview.boxes_of(reader, ".charts", "[data-figure=exponents]")
        assert (heatmap["x"] >= stack["x"] + stack["width"]) is beside
        assert (heatmap["y"] < stack["y"] + stack["height"]) is beside


def test_alerts_keep_the_rules_of_axe(
    alerting: Server, new_reader: Callable[[Server], Reader]
) -> None:
    """With alerts firing and sent, axe finds no violation on the run and on the alerts page, and nothing is cut off."""
    reader, run = new_reader(alerting), failing(alerting)
    reader.arrive(run)
    reader.wait("a mark that it fires", lambda: reader.text(".findings > summary .alarm"))
    reader.unfold_findings()
    reader.wait("the targets", lambda: "sent to phone" in reader.text(f"{ALERT} .standing"))
    assert violations(reader.page, FIRST) == []
    reader.open("#/alerts")
    reader.wait("what was sent", lambda: "sent to phone" in reader.text("main"))
    for theme, width in test_axe.LOOKS:
        reader.theme(theme)
        reader.size(width)
        assert violations(reader.page) == []
        assert faults(reader.page) == []


def test_an_error_message_is_read_on_a_phone(reader: Reader) -> None:
    """A message's address scrolls it to the top of the screen; long messages and code wrap within the width."""
    reader.size(390)
    reader.load("findings/errors#current-loss-scale-already-at-minimum")
    place = (
        "document.getElementById('current-loss-scale-already-at-minimum').getBoundingClientRect().y"
    )

    reader.wait("the message", lambda: 0 <= reader.ask(place) < 200)
    assert reader.ask("document.documentElement.scrollWidth <= innerWidth")
