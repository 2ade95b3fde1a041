"""A reader's habits: keys, following and pausing, retrying, saving and copying."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from playwright.sync_api import Route, expect

from posted import PostedRun
from web.reader import Reader


def test_the_charts_are_steered_by_keys(reader: Reader) -> None:
    """Keys zoom, go from skip to skip and back to the whole run. An open help sheet takes all keys."""
    run = PostedRun(reader.server)
    run.updates(60)
    run.updates(skipped=True)
    run.updates(59)
    reader.show(run)
    keyboard = reader.page.keyboard
    reader.page.focus("select")
    keyboard.press("+")  # a key pressed in a field goes to the field
    keyboard.press("Escape")
    reader.page.locator("h1").click()
    keyboard.press("j")
    reader.wait("the skip", lambda: reader.text(".where") == "Showing steps 35 – 84")
    keyboard.press("j")
    reader.wait("word of the last", lambda: reader.text(".toast") == "No later skip")
    keyboard.press("+")
    reader.wait("the zoom", lambda: reader.text(".where") == "Showing steps 48 – 72")
    keyboard.press("?")
    assert reader.page.locator("#keys[open] kbd").count() > 10
    keyboard.press("0")
    keyboard.press("Escape")
    assert reader.page.locator("#keys[open]").count() == 0
    assert reader.text(".where") == "Showing steps 48 – 72"
    keyboard.press("0")
    reader.wait("the whole run", lambda: reader.range() == [-0.5, 119.5])
    _zoom_that_is_taken_back_leaves_no_trace(reader)


def _zoom_that_is_taken_back_leaves_no_trace(reader: Reader) -> None:
    """After a zoom is undone, the whole run is shown again although only the earlier figure arrived meanwhile."""
    reader.page.route("**/figures/**", lambda _: None)
    reader.page.keyboard.press("+")
    reader.wait("the stretch", lambda: reader.range() == [29.5, 89.5])
    reader.page.keyboard.press("0")
    reader.page.unroute_all()  # releases the held requests
    reader.wait("the whole run", lambda: reader.range() == [-0.5, 119.5])


def test_a_zoom_replaces_a_request_that_gets_no_answer(reader: Reader) -> None:
    """Charts of a new range are requested although those of the range before have not arrived."""
    run = PostedRun(reader.server)
    run.updates(120)
    reader.show(run)
    reader.page.evaluate("AbortSignal.timeout = () => new AbortController().signal")  # no limit
    held = reader.hold("**/figures/scale*")
    reader.page.keyboard.press("+")
    reader.wait("the call", lambda: held)
    reader.page.keyboard.press("+")
    reader.wait("the next call", lambda: len(held) == 2)
    held[1].continue_()
    reader.wait("its stretch", lambda: reader.range() == [44.5, 74.5])


def test_skips_are_gone_through_on_the_time_axis_from_a_link(reader: Reader) -> None:
    """On the axis of time, the next and the previous skip are those beside the mark of a link, or beside its range."""
    run = PostedRun(reader.server)
    for _ in range(3):
        run.updates(40)
        run.updates(skipped=True)
    first, second, third = (run.started + 1000 * step for step in (40, 81, 122))
    keyboard = reader.page.keyboard
    for key, view, at in (
        ("j", f"start={first}&stop={third}&at={second}", third),
        ("k", f"start={first}&stop={third}&at={second}", first),
        ("j", f"start={second + 1}&stop={third + 1}", third),
        ("k", f"start={first}&stop={second}", first),
    ):
        reader.open(f"#{run.path}?x=time&{view}")
        reader.wait("the run", lambda: reader.text("h1") not in {"", "…"})
        keyboard.press(key)
        reader.wait("the skip", lambda at=at: reader.ask("location.hash").endswith(f"at={at}"))


def test_a_key_before_the_figures_of_a_view_arrive_starts_from_that_view(reader: Reader) -> None:
    """A zoom starts from the range asked for, not from the one still drawn, and never on another axis."""
    run = PostedRun(reader.server)
    run.updates(200)
    reader.show(run)
    reader.wait("the whole run", lambda: reader.range() == [-0.5, 199.5])
    keyboard = reader.page.keyboard
    held = reader.hold("**/figures/**")
    reader.page.click("[data-x=time]")
    keyboard.press("+")
    assert reader.text(".where").startswith("Drag"), "the range of time is not known yet"
    reader.page.click("[data-x=step]")
    keyboard.press("+")
    assert reader.text(".where") == "Showing steps 50 – 149"
    keyboard.press("0")
    keyboard.press("+")
    assert reader.text(".where") == "Showing steps 50 – 149"
    keyboard.press("f")
    keyboard.press("ArrowLeft")
    assert reader.text(".where") == "Showing steps 50 – 149"
    reader.page.unroute_all()  # releases the held requests
    assert held
    reader.wait("the stretch", lambda: reader.range() == [49.5, 149.5])
    for _ in range(6):
        keyboard.press("-")
    reader.wait("the whole run", lambda: reader.range() == [-0.5, 199.5])
    assert "start=" not in reader.ask("location.hash")


def test_charts_follow_the_newest_and_hold_still(reader: Reader) -> None:
    """Followed charts show the newest updates. Paused ones stay, can be zoomed, and catch up afterwards."""
    run = PostedRun(reader.server)
    run.updates(150)
    reader.show(run, "?follow=100")
    reader.wait("the newest", lambda: reader.range() == [49.5, 149.5])
    run.updates(20)
    reader.wait("the news", lambda: reader.range() == [69.5, 169.5])
    reader.page.keyboard.press("p")
    run.updates(30)
    reader.wait("word of them", lambda: "30 new steps since" in reader.text(".where"))
    assert reader.range() == [69.5, 169.5]
    reader.page.keyboard.press("0")
    reader.wait("the whole run until then", lambda: reader.range() == [-0.5, 169.5])
    reader.page.keyboard.press("p")
    reader.wait("the rest", lambda: reader.range() == [-0.5, 199.5])
    _news_touch_nothing_of_a_stretch_that_is_done(reader, run)


def _news_touch_nothing_of_a_stretch_that_is_done(reader: Reader, run: PostedRun) -> None:
    """While updates arrive, no element of a chart of an earlier range is added, removed or changed."""
    reader.show(run, "?start=10&stop=60")
    reader.figure("skips").scroll_into_view_if_needed()
    reader.wait("the stretch", lambda: reader.range("skips") == [9.5, 59.5])
    reader.ask(
        "window.touched = [], new MutationObserver(seen => touched.push(...seen.map(each => each.target.className)))"
        ".observe(document.querySelector('[data-figure=scale]'), "
        "{subtree: true, childList: true, attributes: true, characterData: true})"
    )
    # Charts handle the third update before the numbers show the fourth.
    for updates in (220, 240, 260, 280):
        run.updates(20)
        text = f"0 of {updates}"
        reader.wait("the news", lambda text=text: reader.text("[data-number=skipped] dd") == text)
    reader.catch_up()
    assert reader.ask("touched") == []
    reader.page.keyboard.press("0")
    reader.wait("the whole run, which is counted", lambda: reader.ask("touched.length"))


def test_a_chart_that_fails_is_tried_again_in_its_place(reader: Reader) -> None:
    """A figure without an answer, or that the server cannot draw, says so in its place, and a button retries it."""
    run = PostedRun(reader.server)
    run.updates(20)
    does: list[Callable[[Route], None]] = [Route.abort]

    def answer(route: Route) -> None:
        does[0](route)

    reader.ignore_page_errors("status of 500|ERR_FAILED")
    reader.page.route("**/figures/skips?*", answer)
    reader.show(run)
    failed = reader.figure("skips")
    expect(failed.locator("h2")).to_have_text("Skipped steps")
    again = failed.get_by_role("button", name="Try again")
    reader.wait("why", lambda: "The server did not answer." in failed.inner_text())
    error = {"title": "No luck", "status": 500}
    does[0] = partial(Route.fulfill, status=500, json=error)
    again.dispatch_event("click")  # at once, since polling would soon bring the chart too
    reader.wait("why", lambda: "could not draw this chart: No luck" in failed.inner_text())
    does[0] = Route.continue_
    again.dispatch_event("click")
    reader.wait("the chart", lambda: reader.plot("skips", "plot.data.length"))
    assert not re.search("No luck|did not answer", failed.inner_text())


def test_a_table_that_is_refused_says_so_and_holds_up_no_other(reader: Reader) -> None:
    """A ledger of skips that the server rejects shows the reason until it is answered, and other tables load."""
    run = PostedRun(reader.server)
    run.updates(20)
    run.updates(skipped=True)
    broken = [True]

    def refuse(route: Route) -> None:
        if broken[0]:
            route.fulfill(status=503, json={"title": "Busy", "status": 503, "detail": "No luck"})
        else:
            route.continue_()

    reader.ignore_page_errors("status of 503")
    reader.page.route(re.compile(r"/runs/[^/]+/skips\?"), refuse)
    reader.show(run)
    why = "The server could not answer: No luck"
    for tab, table in (("events", "events"), ("gradients", "parameters")):
        reader.tab(tab)
        other = f"[data-ledger={table}]"
        reader.wait(table, lambda other=other: "Loading" not in reader.text(other))
        assert why not in reader.text(other)
    reader.tab("skips")
    reader.wait("why", lambda: why in reader.text("[data-ledger=skips]"))
    broken[0] = False
    run.updates(1)
    reader.wait("the skip", lambda: reader.texts("[data-ledger=skips] tbody tr"))
    assert why not in reader.text("[data-ledger=skips]")
    broken[0] = True
    run.updates(1)
    reader.wait("why again", lambda: why in reader.text("[data-ledger=skips]"))
    assert reader.texts("[data-ledger=skips] tbody tr")


def test_a_chart_is_saved_and_a_number_copied(reader: Reader, tmp_path: Path) -> None:
    """PNG, SVG and CSV are named after run and chart, and have the axis that the stack leaves out. Links are copied."""
    run = PostedRun(reader.server, "a <b>run</b>")
    run.updates(20)
    reader.show(run)
    reader.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    menu = reader.figure("scale").locator(".menu summary")
    expect(menu).to_have_accessible_name("Save “Loss scale”, or copy a link")
    saved = {}
    for kind, words in {"png": "PNG", "svg": "SVG", "csv": "CSV"}.items():
        menu.click()
        with reader.page.expect_download() as waiting:
            reader.figure("scale").get_by_role("button", name=words).click()
        saved[kind] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(saved[kind])
    assert {path.name for path in saved.values()} == {
        f"a-b-run-b-scale.{kind}" for kind in ("png", "svg", "csv")
    }
    assert saved["png"].read_bytes().startswith(b"\x89PNG")
    assert "Loss scale" in saved["svg"].read_text("utf-8")
    assert ">step</text>" in saved["svg"].read_text("utf-8")
    assert saved["csv"].read_text("utf-8").startswith("series,step,")
    assert "loss scale,19,65536,,65 536 = 2¹⁶" in saved["csv"].read_text("utf-8").replace(
        "\u202f", " "
    )
    reader.open()
    reader.page.keyboard.press("c")
    reader.wait("word of a link", lambda: reader.text(".toast") == "Copied a link to this view")
    assert reader.ask("navigator.clipboard.readText()").endswith("/#/")
    reader.arrive(run)
    reader.page.click("[data-number=scale] button")
    reader.wait("word of it", lambda: reader.text(".toast") == "Copied 65536")
    assert reader.ask("navigator.clipboard.readText()") == "65536"


def test_quick_presses_go_to_one_skip_each(reader: Reader) -> None:
    """A key that is pressed again before the server has found a skip searches from that skip on."""
    run = PostedRun(reader.server)
    for _ in range(3):
        run.updates(100, sampled=False)
        run.updates(skipped=True, sampled=False)
    reader.arrive(run)
    held = reader.hold("**/skips/nearest*")
    reader.page.keyboard.press("j")
    reader.page.keyboard.press("j")
    for _ in range(2):
        reader.wait("a call", lambda: held)
        reader.let_go([held.pop(0)])
    reader.wait("the second skip", lambda: "at=201" in reader.ask("location.hash"))
