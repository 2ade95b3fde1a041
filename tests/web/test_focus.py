"""The keyboard's place on the page: rows and columns that move keep the focus, and a selection blocks no key."""

from __future__ import annotations

import re
from itertools import count

from playwright.sync_api import expect

from posted import PostedRun
from web.reader import NOWHERE, Reader


PROJECTS = count()
REST_MS = 300
"""Longer than the page waits for the next letter of a search."""


def _listed(reader: Reader, *names: str) -> dict[str, PostedRun]:
    """Post runs of a project of their own, and open their list."""
    project = f"focus {next(PROJECTS)}"
    runs = {name: PostedRun(reader.server, name, project=project) for name in names}
    for run in runs.values():
        run.updates(3)
    reader.open(f"#/?project={project}")
    expect(reader.page.locator("table.runs tbody a")).to_have_count(len(names))
    return runs


def test_a_row_keeps_the_focus_when_one_above_it_goes(reader: Reader) -> None:
    """A run that is deleted elsewhere takes no focus from the rows below it."""
    runs = _listed(reader, "below", "above")
    box = reader.page.get_by_label("Select below")
    box.focus()
    reader.server.request("DELETE", f"/api/v1{runs['above'].path}")
    expect(reader.page.locator("table.runs tbody a")).to_have_count(1)
    expect(box).to_be_focused()


def test_the_heading_of_a_page_that_is_opened_gets_the_focus(reader: Reader) -> None:
    """A screen reader then says the page, as soon as it has its title. A reader who went on meanwhile is left alone.

    Back in the list, the run that was left has the focus.
    """
    run = _listed(reader, "first")["first"]
    heading = reader.page.locator("h1")
    held = reader.hold(f"**{run.path}")
    reader.page.get_by_role("link", name="first").press("Enter")
    reader.wait("the call", lambda: held)
    expect(heading).not_to_be_focused()
    reader.let_go(held)
    expect(heading).to_be_focused()
    expect(heading).to_have_text("first")
    reader.page.go_back()
    expect(heading).to_have_text("Runs")
    expect(reader.page.get_by_role("link", name="first")).to_be_focused()
    held = reader.hold(f"**{run.path}")
    reader.page.go_forward()
    reader.wait("the call", lambda: held)
    reader.page.locator("#theme").focus()
    reader.let_go(held)
    expect(heading).to_have_text("first")
    expect(reader.page.locator("#theme")).to_be_focused()
    reader.page.unroute_all()
    reader.page.reload()
    expect(heading).to_have_text("first")
    expect(heading).to_be_focused()


def test_a_column_is_moved_by_keys_more_than_once(reader: Reader) -> None:
    """The button that moved a column keeps the focus, so its popup stays open."""
    _listed(reader, "one")
    reader.page.get_by_label("Choose and order the columns").click()
    move = reader.page.get_by_label("Move Loss to the left")
    for _ in range(2):
        move.focus()
        reader.page.keyboard.press("Enter")
        expect(move).to_be_focused()
    reader.page.get_by_role("button", name="Default columns").click()


def test_a_row_opens_by_keys_while_text_is_selected(reader: Reader) -> None:
    """Text that is selected elsewhere on the page, such as code to copy, does not keep Enter from opening a row."""
    run = PostedRun(reader.server)
    run.updates(3)
    reader.arrive(run)
    row = reader.page.locator("[data-ledger=parameters] tbody button").first
    expect(row).to_be_visible()
    reader.ask("getSelection().selectAllChildren(document.querySelector('h1'))")
    row.focus()
    reader.page.keyboard.press("Enter")
    reader.wait("the parameter", lambda: "parameter=" in reader.ask("location.hash"))
    reader.ask("getSelection().removeAllRanges()")


def test_runs_selected_during_an_action_stay_selected(reader: Reader) -> None:
    """An action changes the runs that were selected when it began, and deselects only these."""
    _listed(reader, "later", "now")
    held = reader.hold("**/api/v1/runs/*-*")
    reader.page.get_by_label("Select now").check()
    reader.page.get_by_role("button", name="Archive").click()
    reader.wait("the change", lambda: held)
    reader.page.get_by_label("Select later").check()
    reader.let_go(held)
    expect(reader.page.locator("table.runs tbody a")).to_have_count(1)
    expect(reader.page.get_by_label("Select later")).to_be_checked()
    expect(reader.page.get_by_text("1 run selected")).to_be_visible()


def test_the_search_field_shows_the_search_of_the_address(reader: Reader) -> None:
    """Going back to another search changes the field even if it has the focus, and leaves what is being typed alone.

    What was typed just before another view is opened is not searched there.
    """
    _listed(reader, "one", "other")
    field = reader.page.get_by_label("Search runs")
    field.fill("other")
    expect(reader.page.locator("table.runs tbody a")).to_have_count(1)
    reader.page.get_by_label("Archived").check()
    field.fill("one")
    reader.wait("the search", lambda: "search=one" in reader.ask("location.hash"))
    reader.page.go_back()
    expect(reader.page.locator("table.runs tbody a")).to_have_text("other")
    expect(field).to_have_value("other")
    field.press_sequentially(" ")
    reader.wait("the same search", lambda: reader.page.locator("[data-searching]").count())
    reader.catch_up()
    expect(field).to_have_value("other ")
    field.press_sequentially("late")
    reader.open(NOWHERE)
    rested = reader.ask("performance.now()") + REST_MS
    reader.wait("the end of the pause", lambda: reader.ask("performance.now()") > rested)
    assert reader.ask("location.hash") == NOWHERE
    expect(field).to_have_value("")


def test_a_dialog_about_a_run_closes_when_its_page_is_left(reader: Reader) -> None:
    """The browser's Back leaves no question about a run over the page before."""
    run = PostedRun(reader.server)
    run.updates(3)
    reader.arrive(run)
    reader.page.get_by_role("button", name="Delete…").click()
    expect(reader.page.get_by_role("dialog")).to_be_visible()
    reader.page.go_back()
    expect(reader.page.get_by_role("dialog")).to_have_count(0)


def test_an_invalid_filter_is_reported_until_it_is_gone(passer_by: Reader) -> None:
    """The list says why the server refused a filter of its address, and says so no longer once the filter is valid."""
    reader = passer_by
    reader.page.add_init_script("window.setInterval = () => 0")  # the page does not ask by itself
    reader.ignore_page_errors("status of 422")
    _listed(reader, "one")
    connection = reader.page.locator("#connection")
    for filters, words in (("status=odd", "status"), ("order=odd", "order"), ("", "Live")):
        reader.ask(f"location.hash = '#/?{filters}'")
        expect(connection).to_contain_text(words)


def test_a_theme_chosen_in_another_tab_holds_in_all_of_them(passer_by: Reader) -> None:
    """A tab follows the theme chosen in another one, or its next charts would have the other theme's colours."""
    passer_by.open()
    other = passer_by.page.context.new_page()
    other.goto(f"{passer_by.server.url}/")
    other.click("#theme")
    shown = "document.documentElement.dataset.theme"
    passer_by.wait("its theme", lambda: passer_by.ask(shown) == other.evaluate(shown))


def test_a_dark_page_is_printed_in_the_light_theme(passer_by: Reader) -> None:
    """Browsers print no backgrounds, so the light text of the dark theme would be on white paper."""
    passer_by.theme("dark")
    passer_by.open()
    shown = "document.documentElement.dataset.theme"
    passer_by.wait("the dark theme", lambda: passer_by.ask(shown) == "dark")
    passer_by.page.emulate_media(media="print")
    passer_by.wait("the light theme", lambda: passer_by.ask(shown) == "light")
    passer_by.page.emulate_media(media="screen")
    passer_by.wait("the dark theme again", lambda: passer_by.ask(shown) == "dark")


def test_a_printed_page_cuts_no_chart(passer_by: Reader) -> None:
    """Charts keep the width of the window, at most that of the widest page. Paper is as wide, and has no bar."""
    passer_by.size(2000)
    passer_by.open()
    width = passer_by.page.locator("main").evaluate("main => main.offsetWidth")
    paper = passer_by.page.pdf(prefer_css_page_size=True)
    sizes = re.findall(rb"MediaBox \[0 0 ([\d.]+)", paper)
    assert {float(points) * 96 / 72 >= width for points in sizes} == {True}
    passer_by.page.emulate_media(media="print")
    expect(passer_by.page.locator(".bar")).to_be_hidden()


def test_the_charts_of_a_dark_page_are_printed_in_the_light_theme(reader: Reader) -> None:
    """They have the light colours in the first frame of the print. The browser prints that one."""
    run = PostedRun(reader.server)
    run.updates(3)
    reader.show(run)
    shown = "getComputedStyle(document.querySelector('.plot .ytick text')).fill"
    light = reader.ask(shown)
    reader.theme("dark")
    reader.wait("dark charts", lambda: reader.ask(shown) != light)
    note = f"requestAnimationFrame(() => window.printed ??= {shown})"
    reader.ask(f"void ((window.paper = matchMedia('print')).onchange = () => {note})")
    reader.page.emulate_media(media="print")
    assert reader.wait("the print", lambda: reader.ask("window.printed")) == light
    reader.page.emulate_media(media="null")
    reader.wait("dark charts again", lambda: reader.ask(shown) != light)


def test_charts_that_were_never_on_the_screen_are_printed(reader: Reader) -> None:
    """The keys that print draw the charts of the open tab first. Pressed again meanwhile, they print no second time.

    The browser's menu prints the charts drawn before.
    """
    run = PostedRun(reader.server)
    run.updates(3)
    reader.show(run)
    panels = "[...document.querySelectorAll('.panel[data-waiting]')].filter((one) => one.checkVisibility())"
    waiting = f"{panels}.map((one) => one.dataset.figure)"
    assert reader.ask(waiting)
    reader.page.emulate_media(media="print")
    assert reader.ask(waiting) == []
    reader.page.emulate_media(media="null")
    reader.ask(f"(window.print = () => left.push({waiting}), window.left = [])")
    held = reader.hold(f"**/figures/{reader.ask(waiting)[-1]}?*")
    for _ in range(3):
        reader.page.keyboard.press("Control+p")
    reader.wait("the call", lambda: held)
    reader.let_go(held)
    reader.wait("the print", lambda: reader.ask("left.length"))
    reader.catch_up()
    assert reader.ask("left") == [[]]
    reader.page.unroute_all()


def test_a_reader_who_asks_for_less_motion_is_taken_to_a_place_at_once(reader: Reader) -> None:
    """With the system's setting for reduced motion, a click on a skipped step leads to the charts at once."""
    run = PostedRun(reader.server)
    run.updates(30)
    run.updates(skipped=True)
    reader.show(run)
    reader.page.emulate_media(reduced_motion="reduce")
    reader.tab("skips")
    step = reader.page.locator("[data-ledger=skips] tbody button").first
    step.scroll_into_view_if_needed()
    assert step.evaluate(
        "step => { const before = scrollY; step.click(); return scrollY < before; }"
    )
    reader.page.emulate_media(reduced_motion="null")
