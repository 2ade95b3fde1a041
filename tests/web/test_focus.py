"""The keyboard's place on the page: rows and columns that move keep the focus, and a selection blocks no key."""

from __future__ import annotations

from itertools import count

from playwright.sync_api import expect

from posted import PostedRun
from web.reader import Reader


PROJECTS = count()


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
