"""Parameters in a real browser: from the heatmap or the ledger of skips to one of them."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from posted import PostedRun
from web.reader import Reader


DRAWER = ".drawer"


def _click_row(reader: Reader, row: int) -> None:
    """Click the middle of one of the heatmap's three rows."""
    plot = reader.figure("parameters").locator(".nsewdrag").first
    box = plot.bounding_box()
    assert box is not None
    plot.click(position={"x": box["width"] / 2, "y": box["height"] * (row + 0.5) / 3})


def test_a_parameter_is_found_and_opened(reader: Reader) -> None:
    """A parameter opens from its row of the heatmap, from a search of heatmap and table, and from a skip."""
    run = PostedRun(reader.server, "to be looked at closely")
    run.updates(200)
    run.updates(skipped=True)
    run.updates(30)
    reader.show(run)
    _opened_by_a_click(reader)
    _searched(reader)
    _opened_from_a_skip(reader)


def _opened_by_a_click(reader: Reader) -> None:
    """A parameter's numbers, history and histogram are shown below, the address names it, and Escape closes it."""
    reader.figure("parameters").scroll_into_view_if_needed()
    reader.wait("the heatmap", lambda: reader.plot("parameters", "plot.data[0].y"))
    _click_row(reader, 2)
    reader.wait("the drawer", lambda: reader.text(f"{DRAWER} h3") == "head.weight")
    assert "parameter=head.weight" in reader.ask("location.hash")
    reader.wait("its history", lambda: reader.points("parameter") == 200 + 31)
    reader.figure("histogram").scroll_into_view_if_needed()
    reader.wait("its histogram", lambda: reader.points("histogram") > 10)
    words = reader.wait("its skips", lambda: reader.text(f"{DRAWER} .blamed"))
    assert words == "Culprit in 1 skip, the newest at step 200"
    assert "Shape\n100 × 100, 10 000 elements" in reader.text(f"{DRAWER} .facts")
    assert reader.range("parameter") == reader.range()  # in line with the others
    reader.page.locator(f"{DRAWER} .blamed button").click()
    reader.wait("the step", lambda: "start=175&stop=225" in reader.ask("location.hash"))
    expect(reader.figure("scale")).to_be_in_viewport()
    reader.page.keyboard.press("0")
    reader.page.locator(f"{DRAWER} h3").focus()

    reader.page.keyboard.press("Escape")
    reader.wait("the page without it", lambda: "parameter" not in reader.ask("location.hash"))
    assert not reader.page.locator(DRAWER).is_visible()


def _searched(reader: Reader) -> None:
    """A search in either field is in the address, and both heatmap and table show the matches."""
    heatmap = reader.figure("parameters")
    heatmap.scroll_into_view_if_needed()
    reader.wait("the heatmap", lambda: reader.plot("parameters", "plot.data[0].y.length") == 3)
    heatmap.locator("input").fill("mlp")
    name = "blocks.0.mlp.weight"
    reader.wait("the row", lambda: reader.plot("parameters", "plot.data[0].y") == [name])
    rows = "[data-ledger=parameters] tbody td:first-child"
    reader.wait("the table", lambda: reader.texts(rows) == [name])
    assert "search=mlp" in reader.ask("location.hash")
    table = reader.page.locator("[data-ledger=parameters]")
    assert table.locator("input").input_value() == "mlp"
    table.locator("input").fill("")
    reader.wait("all rows", lambda: len(reader.texts(rows)) == 3)
    table.get_by_role("button", name="Parameter", exact=True).click()
    reader.wait("the model's order", lambda: reader.texts(rows)[-1] == "head.weight")
    more = reader.page.locator("#tip a")
    assert more.get_attribute("href") == "findings/measures#when-sampled"
    table.get_by_role("button", name="Norm, unscaled").press("Enter")
    reader.wait("the order of norms", lambda: more.get_attribute("href").endswith("#derived"))
    assert "search=" not in reader.ask("location.hash")
    assert reader.ask("location.pathname") == "/"
    table.get_by_role("button", name="head.weight").click()
    reader.wait("the drawer", lambda: reader.text(f"{DRAWER} h3") == "head.weight")


def _opened_from_a_skip(reader: Reader) -> None:
    """A click on a skip's row marks it and moves the charts there. A culprit's name opens the parameter."""
    reader.page.keyboard.press("Escape")
    reader.wait("the page without it", lambda: "parameter" not in reader.ask("location.hash"))
    reader.tab("skips")
    row = reader.page.locator("[data-ledger=skips] tbody tr")
    row.locator("[data-name=Cause]").click()
    reader.wait("the skip", lambda: "start=175&stop=225" in reader.ask("location.hash"))
    reader.wait("its mark", lambda: row.get_attribute("aria-current") == "true")
    row.get_by_role("button", name="head.weight").press("Enter")
    reader.wait("the culprit", lambda: "parameter=head.weight" in reader.ask("location.hash"))
    assert "start=175&stop=225" in reader.ask("location.hash")
    reader.wait("the drawer", lambda: reader.text(f"{DRAWER} h3") == "head.weight")


def test_the_table_is_of_what_was_asked_for_last(reader: Reader) -> None:
    """A late answer to an earlier request is not drawn over a later one."""
    names = tuple(f"layer.{index}.weight" for index in range(30))
    run = PostedRun(reader.server, "of many parameters", parameters=names)
    run.updates(5)
    reader.show(run)
    rows = "[data-ledger=parameters] tbody tr"
    reader.wait("the first page", lambda: len(reader.texts(rows)) == 20)
    held = reader.hold(re.compile(r"/parameters\?sort=model&limit=20$"))
    table = reader.page.locator("[data-ledger=parameters]")
    table.get_by_role("button", name="Parameter", exact=True).click()
    reader.wait("the call", lambda: held)
    table.get_by_role("button", name="Show 10 more of 30").click()
    reader.wait("all of them", lambda: len(reader.texts(rows)) == 30)
    reader.let_go(held)
    assert len(reader.texts(rows)) == 30


def test_a_parameter_whose_numbers_are_refused_says_why(reader: Reader) -> None:
    """An error of the server is not shown as a parameter without a sample and without skips."""
    reader.ignore_page_errors("status of 500")
    run = PostedRun(reader.server)
    run.updates(3)
    body = '{"title": "error", "status": 500, "detail": "The store is broken."}'
    reader.page.route("**/parameters?name=*", lambda route: route.fulfill(status=500, body=body))
    reader.open(f"#{run.path}?parameter=head.weight")
    expect(reader.page.locator(f"{DRAWER} h3")).to_have_text("head.weight")
    reader.page.locator(DRAWER).scroll_into_view_if_needed()
    words = "The server could not answer: The store is broken."
    expect(reader.page.locator(f"{DRAWER} > .caption")).to_have_text(words)
    assert reader.text(f"{DRAWER} .blamed") == ""


def test_a_link_to_a_parameter_opens_at_the_top_of_the_page(reader: Reader) -> None:
    """The details are below the charts, and the page neither scrolls to them nor moves the focus there."""
    run = PostedRun(reader.server)
    run.updates(3)
    reader.open(f"#{run.path}?parameter=head.weight")
    expect(reader.page.locator(f"{DRAWER} h3")).to_have_text("head.weight")
    reader.wait("the verdict", lambda: reader.text(".findings .verdict"))
    reader.catch_up()
    assert reader.ask("scrollY") == 0
    assert reader.ask("document.activeElement.tagName") == "H1"


def test_the_table_offers_only_as_many_rows_as_it_lists(reader: Reader) -> None:
    """The button for more rows of a large model counts up to the thousand that the table lists at most."""
    run = PostedRun(reader.server, parameters=tuple(f"layer.{each}" for each in range(1100)))
    run.updates(1)
    reader.arrive(run)
    more = reader.page.locator("[data-ledger=parameters] > button")
    for words in ("Show 80 more", "Show 400 more", "Show 500 more"):
        expect(more).to_have_text(re.compile(words))
        more.click()
    expect(more).to_be_hidden()
    expect(reader.page.locator("[data-ledger=parameters] tbody tr")).to_have_count(1000)
