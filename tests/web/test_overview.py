"""The order of a run's page: what is wrong, four numbers and the stack on one screen, and the rest in tabs."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Request, expect

from batches import Trainer
from posted import PostedRun, post
from web.reader import Reader
from web.views import TABS, settle


ORDER = (
    *(".findings", ".run > .numbers", ".toolbar", "[data-figure=scale]", "[data-figure=skips]"),
    *("[data-figure=scalars]", "[data-figure=underflow]", "[data-figure=exponents]", ".tabs"),
)
"""Of the page, from top to bottom."""
STACK = ("scale", "skips", "scalars", "underflow")
SELECTED = "[role=tab][aria-selected=true]"


def _trained(reader: Reader, **values: float) -> str:
    """The address of a run with samples and a skip, and these logged values."""
    trainer = Trainer(name="seen at a glance")
    updates = trainer.updates(60, skipped=(20,), sampled=range(0, 60, 5))
    logged = [trainer.scalars(values)] if values else []
    post(reader.server, trainer.batch([*updates, *logged]))
    return f"#/runs/{trainer.run_id}"


def _boxes(reader: Reader, *selectors: str) -> list[dict[str, float]]:
    """Where elements are, in pixels of the window; each must be seen."""
    boxes = []
    for selector in selectors:
        box = reader.page.locator(selector).bounding_box()
        assert box is not None, selector
        boxes.append(dict(box))
    return boxes


def test_a_screen_shows_the_verdict_the_numbers_and_the_whole_stack(reader: Reader) -> None:
    """At 1440 × 900 nothing of them needs scrolling, and they stand in this order, above heatmap and tabs."""
    reader.size(1440, 900)
    reader.open(_trained(reader, loss=0.5, lr=1e-3))
    settle(reader)
    reader.wait("the verdict", lambda: reader.text(".answer") not in {"", "…"})
    boxes = _boxes(reader, *ORDER)
    tops = [box["y"] for box in boxes]
    assert tops == sorted(tops)
    assert boxes[6]["y"] + boxes[6]["height"] <= 900
    assert reader.ask("scrollY") == 0
    assert reader.page.locator(".run > .numbers > div").count() == 4


def test_the_stack_is_on_one_axis(reader: Reader) -> None:
    """Its charts have the same place for each step, and only the last has the numbers of steps below it."""
    reader.open(_trained(reader, loss=0.5))
    settle(reader)
    plots = [reader.figure(name).locator(".nsewdrag").first.bounding_box() for name in STACK]
    assert len({(box["x"], box["width"]) for box in plots if box}) == 1
    labels = {name: reader.plot(name, "plot.querySelectorAll('.xtick').length") for name in STACK}
    assert [name for name, number in labels.items() if number] == ["underflow"]
    assert len({tuple(reader.range(name)) for name in STACK}) == 1


def test_on_a_phone_the_stack_fits_one_screen(reader: Reader) -> None:
    """From its toolbar to its axis it is no higher than 844 pixels."""
    reader.size(390, 844)
    reader.open(_trained(reader, loss=0.5))
    settle(reader)
    (box,) = _boxes(reader, ".charts")
    assert box["height"] <= 844


def test_a_wide_screen_has_two_columns(reader: Reader) -> None:
    """From 1800 pixels on, heatmap and tabs stand beside the stack; below that, under it."""
    address = _trained(reader)
    for width, beside in ((1800, True), (1790, False)):
        reader.size(width, 900)
        reader.open(address)
        settle(reader)
        stack, heatmap = _boxes(reader, ".charts", "[data-figure=exponents]")
        assert (heatmap["x"] >= stack["x"] + stack["width"]) is beside
        assert (heatmap["y"] < stack["y"] + stack["height"]) is beside


def test_nothing_logged_leaves_no_hole(reader: Reader) -> None:
    """Without a logged value its chart is not there; with the first one it comes, and has its name as title."""
    trainer = Trainer()
    post(reader.server, trainer.batch(trainer.updates(5)))
    reader.open(f"#/runs/{trainer.run_id}")
    settle(reader)
    expect(reader.figure("scalars")).to_be_hidden()
    post(reader.server, trainer.batch([*trainer.updates(5), trainer.scalars({"accuracy": 1.0})]))
    reader.wait("the value", lambda: reader.plot("scalars", "true"))
    assert reader.text("[data-figure=scalars] h2") == "accuracy"


def test_the_address_holds_the_tab(reader: Reader) -> None:
    """A tab that is chosen is in the address: a reload shows it again, and back leads to the one before."""
    reader.open(_trained(reader))
    settle(reader)
    assert reader.text(SELECTED) == "Gradients by layer"
    reader.tab("skips")
    reader.wait("the address", lambda: "tab=skips" in reader.ask("location.hash"))
    reader.tab("events")
    reader.page.reload()
    reader.wait("the tab", lambda: reader.text(SELECTED) == "Events")
    reader.page.go_back()
    reader.wait("the one before", lambda: reader.text(SELECTED) == "Skipped steps")
    reader.wait("its rows", lambda: reader.texts("[data-ledger=skips] tbody tr"))
    reader.page.go_back()
    reader.wait("the first", lambda: reader.text(SELECTED) == "Gradients by layer")


def test_a_tab_asks_for_its_charts_once_it_is_open(reader: Reader) -> None:
    """Until then neither charts nor tables of a tab are asked for, and those of one that was left no more."""
    run = PostedRun(reader.server)
    run.updates(20)
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    reader.page.on("request", note)
    reader.size(1440, 3000)
    reader.show(run)
    settle(reader)
    for name in ("whatif", "simulated", "timing", "skips?limit", "events?"):
        assert not [url for url in asked if f"/{name}" in url and "figures/skips" not in url], name
    reader.tab("whatif")
    settle(reader)
    assert [url for url in asked if "/figures/whatif" in url]
    asked.clear()
    run.updates(5)
    reader.wait("the news", lambda: reader.points() == 25)
    reader.catch_up()
    assert not [url for url in asked if "/figures/parameters" in url or "/parameters?" in url]
    reader.page.remove_listener("request", note)


@pytest.mark.parametrize(("key", "leads_to"), [("ArrowRight", 1), ("ArrowLeft", -1), ("End", -1)])
def test_tabs_are_steered_by_keys(reader: Reader, key: str, leads_to: int) -> None:
    """Arrows go from tab to tab and around, End to the last; one tab alone is a stop of the Tab key."""
    reader.open(_trained(reader))
    settle(reader)
    before = reader.range()
    reader.page.locator(f"#tab-{TABS[0]}").focus()
    reader.page.keyboard.press(key)
    to: Any = TABS[leads_to]
    reader.wait("the tab", lambda: reader.ask("document.activeElement.id") == f"tab-{to}")
    assert reader.page.locator(f"#in-{to}").is_visible()
    assert reader.page.locator("[role=tabpanel]:visible").count() == 1
    assert reader.page.locator("[role=tab][tabindex='0']").count() == 1
    assert reader.range() == before
