"""The layout of a run's page: verdict, four numbers and the stack on one screen, the rest in tabs."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Request, expect

from batches import Trainer
from posted import PostedRun, post
from web.axe import violations
from web.reader import NOWHERE, Reader
from web.views import TABS, settle


ORDER = (
    *(".findings", ".run > .numbers", ".toolbar", "[data-figure=scale]", "[data-figure=skips]"),
    *("[data-figure=scalars]", "[data-figure=underflow]", "[data-figure=exponents]", ".tabs"),
)
"""Parts of the page, from top to bottom."""
STACK = ("scale", "skips", "scalars", "underflow")
_MOVES = """() => {
    const moves = [];
    let drawn = Infinity;
    const watch = new MutationObserver(() => {
        if (!document.querySelector(".main-svg")) return;
        watch.disconnect();
        requestAnimationFrame(() => requestAnimationFrame(now => { drawn = now; }));
    });
    watch.observe(document.body, {childList: true, subtree: true});
    const shifts = new PerformanceObserver(list => moves.push(...list.getEntries()));
    shifts.observe({type: "layout-shift"});
    window.moved = () => {
        moves.push(...shifts.takeRecords());
        shifts.disconnect(); watch.disconnect(); delete window.moved;
        return moves.filter(({startTime}) => startTime > drawn).flatMap(({sources}) => sources)
            .map(({node, previousRect: was, currentRect: is}) => ({name: node?.className, was, is}))
            .filter(({was, is}) => was.height && is.height && Math.abs(was.y - is.y) >= 3)
            .map(({name, was, is}) => `${name} from ${was.y} to ${is.y}`);
    };
}"""
"""Afterwards `moved()` reports, once, what moved up or down by at least 3 pixels after the first chart's frame."""
SELECTED = "[role=tab][aria-selected=true]"


def trained(reader: Reader, **values: float) -> str:
    """The address of a run with samples, a skip and these logged values."""
    trainer = Trainer(name="seen at a glance")
    updates = trainer.updates(60, skipped=(20,), sampled=range(0, 60, 5))
    logged = [trainer.scalars(values)] if values else []
    post(reader.server, trainer.batch([*updates, *logged]))
    return f"#/runs/{trainer.run_id}"


def boxes_of(reader: Reader, *selectors: str) -> list[dict[str, float]]:
    """The boxes of elements in pixels of the window. Each must be visible."""
    boxes = []
    for selector in selectors:
        box = reader.page.locator(selector).bounding_box()
        assert box is not None, selector
        boxes.append(dict(box))
    return boxes


def _readout(reader: Reader, name: str) -> str:
    return reader.text(f"[data-figure={name}] .readout").replace("\n", " ")


def _line(reader: Reader, name: str, which: str) -> Any:
    """The position of a line through a chart, as a share of its plot; None without one."""
    share = reader.plot(name, f"plot.style.getPropertyValue('--{which}')")
    return float(share) if share else None


def test_a_screen_shows_the_verdict_the_numbers_and_the_whole_stack(reader: Reader) -> None:
    """At 1440 × 900 verdict, numbers and stack fit without scrolling and do not move. Pointer and keys control them."""
    reader.size(1440, 900)
    address = trained(reader, loss=0.5, lr=1e-3)
    check_that_nothing_moves(reader, address)
    _stands_in_order(reader)
    _is_read_by_the_pointer(reader)
    _is_explained(reader)
    _is_turned_by_the_address(reader)
    _is_turned_by_keys(reader)


def check_that_nothing_moves(reader: Reader, address: str) -> None:
    """Once the first chart is drawn, no part of the first screen of a judged run moves."""
    reader.wait("judgement", lambda: reader.server.get(address[1:])["verdict"])
    reader.open(NOWHERE)
    reader.page.evaluate(_MOVES)
    reader.open(address)
    settle(reader)
    reader.wait("the verdict", lambda: reader.text(".answer") not in {"", "…"})
    reader.catch_up()
    assert reader.ask("moved()") == []


def _stands_in_order(reader: Reader) -> None:
    """Verdict, numbers and stack come in this order, above heatmap and tabs."""
    boxes = boxes_of(reader, *ORDER)
    tops = [box["y"] for box in boxes]
    assert tops == sorted(tops)
    assert boxes[6]["y"] + boxes[6]["height"] <= 900
    assert reader.ask("scrollY") == 0
    assert reader.page.locator(".run > .numbers > div").count() == 4


def _is_read_by_the_pointer(reader: Reader) -> None:
    """A pointer over one chart draws a line on all, and each shows its values at that step.

    All share the axis, only the last has step labels, and no box hides data.
    """
    plots = [reader.figure(name).locator(".nsewdrag").first.bounding_box() for name in STACK]
    assert len({(box["x"], box["width"]) for box in plots if box}) == 1
    labels = {name: reader.plot(name, "plot.querySelectorAll('.xtick').length") for name in STACK}
    assert [name for name, number in labels.items() if number] == ["underflow"]
    assert len({tuple(reader.range(name)) for name in STACK}) == 1
    reader.wait("the newest", lambda: "headroom" in _readout(reader, "scale"))
    assert "normal" in _readout(reader, "underflow")
    box = reader.figure("skips").locator(".nsewdrag").bounding_box()
    assert box is not None
    at_skip = box["x"] + box["width"] * 20.5 / 60, box["y"] + 20
    for off in (40, 0):
        reader.page.mouse.move(at_skip[0] + off, at_skip[1])
    reader.wait("the step", lambda: _readout(reader, "scale").startswith("step 20"))
    assert "back-off" in _readout(reader, "scale")
    assert _readout(reader, "skips") == "step 20skipped"
    for name in (*STACK, "exponents"):
        assert _readout(reader, name).startswith("step 20"), name
        assert _line(reader, name, "cross") == pytest.approx(20.5 / 60, abs=0.01)
    assert reader.page.locator(".hoverlayer:visible text").count() == 0
    reader.page.mouse.move(0, 0)
    reader.wait("the newest again", lambda: not _readout(reader, "scale").startswith("step"))
    assert _readout(reader, "skips").endswith("skipped (1.7 %) in steps 0 – 59.")


def _is_explained(reader: Reader) -> None:
    """A chart's (i) explains its terms: it opens by a key, has no axe violation and closes with Escape."""
    about = reader.figure("underflow").locator(".about")
    expect(about.locator("dl")).to_be_hidden()
    about.locator("summary").press("Enter")
    expect(about).to_contain_text("the fewer bits fp16 keeps")
    expect(about).to_contain_text("normal")
    assert violations(reader.page, "[data-figure=underflow]") == []
    reader.page.keyboard.press("Escape")
    expect(about.locator("dl")).to_be_hidden()


def _is_turned_by_the_address(reader: Reader) -> None:
    """The open tab is in the address, and Back returns to the one before."""
    assert reader.text(SELECTED) == "Gradients by layer"
    reader.tab("skips")
    reader.wait("the address", lambda: "tab=skips" in reader.ask("location.hash"))
    reader.tab("events")
    reader.wait("the next", lambda: "tab=events" in reader.ask("location.hash"))
    reader.page.go_back()
    reader.wait("the one before", lambda: reader.text(SELECTED) == "Skipped steps")
    reader.wait("its rows", lambda: reader.texts("[data-ledger=skips] tbody tr"))
    reader.page.go_back()
    reader.wait("the first", lambda: reader.text(SELECTED) == "Gradients by layer")


def _is_turned_by_keys(reader: Reader) -> None:
    """Arrow keys go from tab to tab and around, End to the last. The tabs are one stop of the Tab key."""
    before = reader.range()
    reader.page.locator(f"#tab-{TABS[0]}").focus()
    for key, leads_to in (
        ("ArrowRight", 1),
        ("ArrowLeft", 0),
        ("ArrowLeft", -1),
        ("ArrowRight", 0),
        ("End", -1),
    ):
        reader.page.keyboard.press(key)
        to: Any = TABS[leads_to]
        reader.wait("the tab", lambda to=to: reader.ask("document.activeElement.id") == f"tab-{to}")
        assert reader.page.locator(f"#in-{to}").is_visible()
        assert reader.page.locator("[role=tabpanel]:visible").count() == 1
        assert reader.page.locator("[role=tab][tabindex='0']").count() == 1
    assert reader.range() == before


def test_a_tab_asks_for_its_charts_once_it_is_open(reader: Reader) -> None:
    """Charts and tables of a tab are requested once it is open, and no longer after it is left."""
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
    reader.wait("the news", lambda: reader.newest() == 24)
    reader.catch_up()
    assert not [url for url in asked if "/figures/parameters" in url or "/parameters?" in url]
    reader.page.remove_listener("request", note)


def test_a_chart_that_is_redrawn_in_a_hidden_tab_keeps_the_room_of_its_values(
    reader: Reader,
) -> None:
    """A new theme redraws every chart; the row of values above a hidden one stays as high as it was."""
    reader.size(1440, 3000)
    reader.open(trained(reader))
    settle(reader)
    reader.wait("the tab's chart", lambda: _readout(reader, "norm"))
    room = "document.querySelector('[data-figure=norm] .readout').style.minHeight"
    before = reader.ask(room)
    assert before not in {"", "0px"}
    colour = "plot.layout.hoverlabel.bgcolor"
    drawn = reader.plot("norm", colour)
    reader.tab("events")
    reader.page.click("#theme")
    reader.wait("new colours", lambda: reader.plot("norm", colour) != drawn)
    assert reader.ask(room) == before
    reader.page.click("#theme")


def test_a_skip_that_is_gone_to_is_marked_and_a_reload_keeps_the_view(reader: Reader) -> None:
    """A key brings the stack into view and marks the step; a reload keeps mark, zoom, tab and theme.

    The theme is the system's until the reader changes it, and the first Tab stop is a link past the bar.
    """
    reader.theme("dark")
    reader.open(f"{trained(reader, loss=0.5)}?tab=events")
    settle(reader)
    assert reader.ask("document.documentElement.dataset.theme") == "dark"
    reader.page.locator("#tab-events").scroll_into_view_if_needed()
    reader.page.keyboard.press("j")
    reader.wait("the skip", lambda: "at=20" in reader.ask("location.hash"))
    reader.wait("its mark", lambda: _line(reader, "scale", "mark"))
    expect(reader.figure("scale")).to_be_in_viewport()
    reader.wait("its words", lambda: "skipped" in _readout(reader, "skips"))
    reader.page.keyboard.press("+")
    width = "plot.layout.xaxis.range[1] - plot.layout.xaxis.range[0]"
    reader.wait("the zoom", lambda: reader.plot("scale", width) == 25)  # of fifty steps
    low, high = zoomed = reader.range()
    assert low < 20 < high
    colour = "plot.layout.hoverlabel.bgcolor"
    dark = reader.plot("scale", colour)
    reader.page.click("#theme")
    reader.wait("new colours", lambda: reader.plot("scale", colour) != dark)
    reader.page.reload()
    reader.wait("the mark again", lambda: _line(reader, "scale", "mark"))
    assert reader.range() == zoomed
    assert reader.text(SELECTED) == "Events"
    assert reader.ask("document.documentElement.dataset.theme") == "light"
    address = reader.ask("location.hash")
    reader.page.locator("#skip").focus()
    reader.page.keyboard.press("Enter")
    assert reader.ask("document.activeElement.id") == "content"
    assert reader.ask("location.hash") == address
    reader.page.keyboard.press("0")
    reader.wait("no mark", lambda: _line(reader, "scale", "mark") is None)
    assert "at=" not in reader.ask("location.hash")
    reader.page.click("#theme")
    assert reader.ask("document.documentElement.dataset.theme") == "dark"
    assert reader.ask("localStorage.length") == 0
