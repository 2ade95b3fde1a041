"""Work that is under way when the reader leaves a page has no effect."""

from __future__ import annotations

import re

from playwright.sync_api import Route, expect

from posted import PostedRun
from web.reader import NOWHERE, Reader


GONE = "01900000-0000-7000-8000-000000000000"


def test_an_answer_that_comes_late_moves_the_reader_nowhere(reader: Reader) -> None:
    """A late answer to a search for a setting or a skip does not lead back to the page that was left."""
    run = PostedRun(reader.server)
    run.updates(20, sampled=False)
    run.updates(skipped=True, sampled=False)
    held = reader.hold(re.compile(r"/simulate(\?|$)"))
    reader.arrive(run)
    reader.tab("whatif")
    advice = reader.page.get_by_role("button", name="Find a better setting")

    def drawn() -> bool:
        reader.figure("simulated").scroll_into_view_if_needed()
        return advice.is_visible()

    reader.wait("the form", drawn)
    advice.click()
    _leave(reader, held)
    held = reader.hold("**/skips/nearest*")
    reader.arrive(run)
    reader.page.keyboard.press("k")
    _leave(reader, held)


def _leave(reader: Reader, held: list[Route]) -> None:
    reader.wait("the call", lambda: held)
    reader.open(NOWHERE)
    reader.let_go(held)
    assert reader.ask("location.hash") == NOWHERE


def test_a_run_that_is_not_there_is_said_to_be_on_its_own_page_alone(reader: Reader) -> None:
    """A late answer that a run is missing does not replace the page the reader went to.

    A link to the run says so, and the next page shows no trace of it.
    """
    reader.ignore_page_errors("404")
    held = reader.hold(f"**/runs/{GONE}")
    reader.open(f"#/runs/{GONE}")
    reader.wait("the call", lambda: held)
    reader.open(NOWHERE)
    reader.let_go(held)
    assert reader.text("h1") == "Runs"
    assert reader.text("#connection") == "Live"
    reader.page.unroute_all()
    reader.open(f"#/runs/{GONE}")
    reader.wait("the words", lambda: "No such run" in reader.text("h1"))
    assert reader.page.title() == "No such run · ampmon"
    assert reader.text("#connection") == "Live"
    reader.page.get_by_role("link", name="All runs").click()
    reader.wait("the list", lambda: reader.page.title() == "Runs · ampmon")


def test_a_deleted_run_is_left_for_the_list_or_said_to_be_gone(reader: Reader) -> None:
    """A run deleted on its own page leads to the list. One deleted elsewhere is said to be gone, and all is well."""
    reader.ignore_page_errors("404")
    run = PostedRun(reader.server)
    run.updates(3)
    reader.arrive(run)
    assert reader.server.request("DELETE", f"/api/v1{run.path}").status == 204
    reader.wait("the words", lambda: "No such run" in reader.text("h1"))
    assert reader.page.title() == "No such run · ampmon"
    assert reader.text("#connection") == "Live"
    run = PostedRun(reader.server)
    run.updates(3)
    reader.arrive(run)
    reader.page.get_by_role("button", name="Delete…").click()
    reader.page.get_by_role("button", name="Delete", exact=True).click()
    reader.wait("the list", lambda: reader.text("h1") == "Runs")
    assert reader.ask("location.hash") == "#/"


STRAYS = """(() => {
    const { react } = Plotly;
    window.strays = 0;
    Plotly.react = (place, ...figure) => {
        strays += !place.isConnected;
        return react(place, ...figure);
    };
    window.unwatch = () => { Plotly.react = react; };
})()"""
"""Counts the charts that are drawn after their page was left."""


def test_rows_that_come_late_replace_no_newer_ones(reader: Reader) -> None:
    """A late answer with the first rows of a table leaves the older rows that the reader asked for meanwhile."""
    run = PostedRun(reader.server)
    run.updates(15, skipped=True)
    reader.arrive(run)
    reader.tab("skips")
    rows = "[data-ledger=skips] tbody tr"
    reader.wait("the newest", lambda: len(reader.texts(rows)) == 10)
    held = reader.hold(re.compile(r"/skips\?limit=10&"))
    run.updates(skipped=True)
    reader.wait("the call", lambda: held)
    reader.page.get_by_role("button", name="Older").click()
    reader.wait("all", lambda: len(reader.texts(rows)) == 16)
    reader.let_go(held)
    assert len(reader.texts(rows)) == 16


def test_charts_that_come_late_are_not_drawn(reader: Reader) -> None:
    """Charts requested or about to be drawn when their page is left are not drawn."""
    run = PostedRun(reader.server)
    run.updates(20)
    reader.show(run)
    reader.ask(STRAYS)
    # A click aborts the calls under way, so those of steps are not held.
    held = reader.hold(re.compile(r"/figures/.*x=time"))
    reader.page.click("[data-x=time]")
    reader.wait("the calls", lambda: held)
    reader.open(NOWHERE)
    reader.let_go(held)
    assert reader.ask("strays") == 0
    reader.page.unroute_all()
    reader.show(run)
    reader.ask("(document.querySelector('#theme').click(), location.hash = '#/')")
    reader.wait("the list", lambda: reader.text("h1") == "Runs")
    reader.show(run)  # charts are drawn in turn, so earlier ones would come first
    reader.open(NOWHERE)
    reader.catch_up()
    assert reader.ask("strays") == 0
    reader.ask("unwatch()")
    reader.page.click("#theme")


def test_an_error_that_comes_late_is_not_shown_in_the_next_view(reader: Reader) -> None:
    """A refusal of a chart's earlier range leaves the chart as it is until that of the new range arrives."""
    reader.ignore_page_errors("status of 500")
    run = PostedRun(reader.server)
    run.updates(30)
    reader.show(run)
    held = reader.hold("**/figures/scale*")
    run.updates(1)
    reader.wait("the call", lambda: held)
    reader.page.keyboard.press("+")
    held[0].fulfill(status=500, body='{"title": "error", "status": 500, "detail": "It is broken."}')
    reader.wait("the next call", lambda: len(held) == 2)
    assert not reader.figure("scale").locator(".empty").is_visible()


def test_the_title_is_that_of_the_page_that_loads(reader: Reader) -> None:
    """A run whose summary is late or missing does not keep the title of the page before."""
    run = PostedRun(reader.server)
    reader.open()
    reader.wait("the list", lambda: reader.page.title() == "Runs · ampmon")
    held = reader.hold(f"**{run.path}")
    reader.page.evaluate(f"location.hash = '{run.path}'")
    reader.wait("the call", lambda: held)
    assert reader.page.title() == "Run · ampmon"
    reader.let_go(held)
    reader.wait("its name", lambda: reader.page.title() == "made up · ampmon")


def test_a_page_that_waits_for_its_answer_holds_up_no_other(reader: Reader) -> None:
    """The list is fetched at once although the server has not answered the run's page that is left."""
    run = PostedRun(reader.server)
    run.updates(1)
    reader.arrive(run)
    reader.ask("void (AbortSignal.timeout = () => new AbortController().signal)")  # no limit
    held = reader.hold(f"**{run.path}")
    run.updates(1)
    reader.wait("the call", lambda: held)
    other = PostedRun(reader.server, "another one", project="not held up")
    other.updates(1)
    reader.open("#/?project=not held up")
    expect(reader.page.get_by_role("link", name="another one")).to_be_visible()
    reader.page.unroute_all()


def test_the_list_says_what_it_waits_for(reader: Reader) -> None:
    """Until the answer, a list says that it loads, and never that there are no runs because a filter found none."""
    run = PostedRun(reader.server)
    run.updates(1)
    reader.open(NOWHERE)
    expect(reader.page.get_by_text("No run matches.")).to_be_visible()
    held = reader.hold("**/api/v1/runs?*")
    reader.ask("location.hash = '#/'")
    reader.wait("the call", lambda: held)
    assert not reader.page.get_by_text("No runs yet.").is_visible()
    reader.page.reload()
    expect(reader.page.locator("main .empty")).to_have_text("Loading…")
    reader.page.unroute_all()
    expect(reader.page.locator("main .empty")).to_be_hidden()
