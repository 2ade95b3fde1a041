"""The list of runs in a browser: its length, search, order and columns, and actions on selected runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect
from sqlalchemy import insert, select

from ampmon_server.settings import Settings
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.opening import url_of
from ampmon_server.store.schema.tables import runs
from posted import PostedRun
from serving import Server
from web.reader import Reader, light


COPIES = 2000


@pytest.fixture(scope="module")
def listed(own_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for this file's tests whose runs or readers would disturb others."""
    behind = ["--behind-proxy", "127.0.0.1", "--trust-user-header", "X-Forwarded-User"]
    folder = tmp_path_factory.mktemp("listed") / "ampmon"
    with Server(folder, port=own_port, options=behind) as server:
        yield server


@pytest.fixture
def own_reader(listed: Server, new_reader: Callable[[Server], Reader]) -> Reader:
    """A reader who may sign out, of a list that may be long. No charts are drawn."""
    reader = new_reader(listed)
    light(reader.page)
    return reader


def copied(reader: Reader, run: PostedRun) -> None:
    """Insert copies of a run into the store, each a minute older than the one before, with their own names."""
    database = engine.open_engine(url_of(Settings(data_directory=reader.server.directory)))
    with engine.writing(database) as connection:
        found = select(runs).where(runs.c.run_id == run.run_id.bytes)
        row = connection.execute(found).one()._mapping
        own = [
            {
                "run_id": (run.run_id.int + number).to_bytes(16, "big"),
                "name": f"copy {number}",
                "started": row["started"] - 60_000_000 * number,
                "updates": number,
            }
            for number in range(1, COPIES)
        ]
        connection.execute(insert(runs), [{**row, **each} for each in own])
    database.dispose()


def names(reader: Reader) -> list[str]:
    return reader.texts("table.runs tbody a")


def test_runs_are_edited_archived_and_deleted(reader: Reader) -> None:
    """Selected runs can be compared, renamed, archived and restored, and deleted after a confirmation."""
    evil = "<b>one</b> ابن"
    for name in (evil, "two"):
        PostedRun(reader.server, name, project="edited").updates(3)
    reader.open("#/?project=edited")
    reader.wait("both", lambda: sorted(names(reader)) == sorted([evil, "two"]))
    page = reader.page
    page.get_by_label("Select two").check()
    page.get_by_role("button", name="Edit…").click()
    page.get_by_label("Name").fill("three")
    page.get_by_label("Tags").fill("a, b")
    page.get_by_role("button", name="Save").click()
    reader.wait("the name", lambda: "three" in names(reader))
    assert reader.texts(".tag") == ["a", "b"]

    page.get_by_label("Select three").check()
    page.get_by_label(f"Select {evil}").check()
    expect(page.get_by_role("link", name="Compare")).to_be_visible()
    page.get_by_label(f"Select {evil}").uncheck()
    page.get_by_role("button", name="Archive").click()
    reader.wait("one", lambda: names(reader) == [evil])
    page.get_by_label("Archived").check()
    reader.wait("the other", lambda: names(reader) == ["three"])
    page.get_by_label("Select three").check()
    page.get_by_role("button", name="Unarchive").click()
    reader.wait("none", lambda: names(reader) == [])
    page.get_by_role("button", name="Show all runs").click()
    reader.wait("all", lambda: len(names(reader)) >= 2)
    reader.open("#/?project=edited")
    reader.wait("both again", lambda: len(names(reader)) == 2)

    page.get_by_label(f"Select {evil}").check()
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("dialog")).to_contain_text(evil)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert len(names(reader)) == 2
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    reader.wait("what is left", lambda: names(reader) == ["three"])


def test_a_selected_run_that_is_deleted_elsewhere_holds_up_no_other(reader: Reader) -> None:
    """Archiving selected runs passes over one that was deleted meanwhile, and clears the selection."""
    runs = [PostedRun(reader.server, name, project="elsewhere") for name in ("kept", "gone")]
    for run in runs:
        run.updates(3)
    reader.open("#/?project=elsewhere")
    reader.wait("both", lambda: names(reader) == ["gone", "kept"])
    for name in names(reader):
        reader.page.get_by_label(f"Select {name}").check()
    assert reader.server.request("DELETE", f"/api/v1{runs[1].path}").status == 204
    reader.ignore_page_errors("status of 404")
    reader.page.get_by_role("button", name="Archive").click()
    reader.wait("none", lambda: reader.texts("table.runs tbody a") == [])
    expect(reader.page.get_by_role("toolbar", name="Selected runs")).to_be_hidden()


def test_a_selected_run_that_is_renamed_elsewhere_has_its_new_name(reader: Reader) -> None:
    """The dialogs name selected runs as the list does, also after somebody else renamed one."""
    run = PostedRun(reader.server, "before", project="renamed")
    run.updates(3)
    reader.open("#/?project=renamed")
    reader.wait("the run", lambda: names(reader) == ["before"])
    reader.page.get_by_label("Select before").check()
    reader.server.request("PATCH", f"/api/v1{run.path}", json={"name": "after"})
    reader.wait("the new name", lambda: names(reader) == ["after"])
    dialog = reader.page.get_by_role("dialog")
    reader.page.get_by_role("button", name="Edit…").click()
    expect(dialog.get_by_label("Name")).to_have_value("after")
    reader.page.keyboard.press("Escape")
    reader.page.get_by_role("button", name="Delete…").click()
    expect(dialog).to_contain_text("after")
    reader.page.keyboard.press("Escape")
    reader.page.get_by_role("button", name="Clear").click()


def test_a_selected_run_that_is_deleted_on_its_page_is_deselected(reader: Reader) -> None:
    """Back in the list, only the other run is selected and shown."""
    for name in ("stays", "goes"):
        PostedRun(reader.server, name, project="selected").updates(3)
    reader.open("#/?project=selected")
    reader.wait("both", lambda: names(reader) == ["goes", "stays"])
    for name in names(reader):
        reader.page.get_by_label(f"Select {name}").check()
    reader.page.get_by_role("link", name="goes", exact=True).click()
    reader.ignore_page_errors("status of 404")
    reader.page.get_by_role("button", name="Delete…").click()
    reader.page.get_by_role("button", name="Delete", exact=True).click()
    bar = reader.page.get_by_role("toolbar", name="Selected runs")
    expect(bar).to_contain_text("1 run selected")
    expect(reader.page.get_by_role("link", name="goes", exact=True)).to_have_count(0)


def test_a_new_name_leaves_the_tags_alone(reader: Reader) -> None:
    """The dialog that edits a run keeps tags that have commas unless the reader changes the tags, each once.

    It tells why a blank name is refused.
    """
    run = PostedRun(reader.server, "named", tags=("lr=1,wd=2", "keep"))
    run.updates(3)
    reader.arrive(run)
    for field, words, tags in (
        ("Name", "renamed", ["lr=1,wd=2", "keep"]),
        ("Tags", "b, a, b,", ["b", "a"]),
    ):
        reader.page.get_by_role("button", name="Edit…").click()
        dialog = reader.page.get_by_role("dialog")
        dialog.get_by_label(field).fill(words)
        with reader.page.expect_response(lambda answer: answer.request.method == "PATCH"):
            dialog.get_by_role("button", name="Save").click()
        summary = reader.server.request("GET", f"/api/v1{run.path}").json()
        assert (summary["name"], summary["tags"]) == ("renamed", tags)
    reader.ignore_page_errors("status of 422")
    reader.page.get_by_role("button", name="Edit…").click()
    reader.page.get_by_role("dialog").get_by_label("Name").fill("  ")
    reader.page.keyboard.press("Enter")
    why = "Action failed: name needs a visible character and no control characters."
    reader.wait("the refusal", lambda: reader.text(".toast") == why)


def test_an_edit_sends_only_what_the_reader_changed(reader: Reader) -> None:
    """A name that somebody else gives the run while the dialog is open stays if the reader changes only the tags."""
    run = PostedRun(reader.server, "named", tags=("keep",))
    run.updates(3)
    reader.arrive(run)
    reader.page.get_by_role("button", name="Edit…").click()
    reader.server.request("PATCH", f"/api/v1{run.path}", json={"name": "by another"})
    dialog = reader.page.get_by_role("dialog")
    dialog.get_by_label("Tags").fill("new")
    with reader.page.expect_response(lambda answer: answer.request.method == "PATCH"):
        dialog.get_by_role("button", name="Save").click()

    summary = reader.server.request("GET", f"/api/v1{run.path}").json()
    assert (summary["name"], summary["tags"]) == ("by another", ["new"])


def test_a_reader_is_offered_their_own_runs_to_change(own_reader: Reader) -> None:
    """The page names the signed-in reader, offers changes only to that reader's runs, and lets the reader sign out."""
    reader = own_reader
    page = reader.page
    for owner in ("tester", "ada"):
        PostedRun(reader.server, f"{owner}'s", owner=owner).updates(3)
    enter_as(reader, "ada")
    reader.open()
    reader.wait("both", lambda: {"tester's", "ada's"} <= {*names(reader)})
    bar = page.get_by_role("toolbar", name="Selected runs")
    page.get_by_label("Select ada's").check()
    expect(bar.get_by_role("button", name="Delete…")).to_be_visible()
    page.get_by_label("Select tester's").check()
    expect(bar).to_contain_text("You cannot change 1 of these runs")
    expect(bar.get_by_role("button", name="Delete…")).to_be_hidden()

    page.get_by_role("link", name="tester's").click()
    reader.wait("the run", lambda: reader.text("h1") == "tester's")
    expect(page.get_by_role("button", name="Edit…")).to_have_count(0)
    reader.open()
    page.get_by_role("link", name="ada's").click()
    page.get_by_role("button", name="Edit…").click()
    page.get_by_role("textbox", name="Name").fill("hers")
    page.get_by_role("button", name="Save").click()
    reader.wait("the name", lambda: reader.text("h1") == "hers")

    page.get_by_role("button", name="Signed in as ada").click()
    expect(page.get_by_role("dialog")).to_contain_text("Access to these projects: tests.")
    reader.ignore_page_errors("401")
    # A page that is closed while it reloads never reports that it is closed.
    with page.expect_event("load"):
        page.get_by_role("button", name="Sign out").click()
    expect(page.locator("body")).to_contain_text("ampmon token link")
    assert not page.context.cookies()


def test_a_long_list_has_only_the_rows_on_the_screen(own_reader: Reader) -> None:
    """Of two thousand rows few are on the page, with their number and the total. A new run moves none."""
    reader = own_reader
    run = PostedRun(reader.server, "the newest", project="long")
    run.updates(40)
    copied(reader, run)
    reader.open("#/?project=long")
    reader.wait("the list", lambda: names(reader)[:2] == ["the newest", "copy 1"])
    table = reader.page.locator("table.runs")
    expect(table).to_have_attribute("aria-rowcount", str(COPIES + 1))
    reader.wait("its scale", lambda: table.get_by_label("Scale 2¹⁶ all along").count())

    reader.page.mouse.wheel(0, 48 * 1000)
    reader.wait("what is there", lambda: f"copy {COPIES // 2}" in names(reader))
    assert len(names(reader)) < 60
    place = table.locator("tr", has_text="copy 1010").get_attribute("aria-rowindex")
    assert place == str(1010 + 2)
    assert {box["height"] for box in boxes(reader)} == {48}
    here = table.locator("tr", has_text="copy 1010")
    before = here.bounding_box()
    PostedRun(reader.server, "newer", project="long").updates(1)
    expect(table).to_have_attribute("aria-rowcount", str(COPIES + 2))
    assert here.bounding_box() == before

    table.get_by_role("button", name="Steps").click()
    reader.wait("the order", lambda: names(reader)[:2] == ["copy 1999", "copy 1998"])
    assert "sort=updates" in reader.page.url
    reader.page.get_by_role("searchbox").fill("COPY 177")
    reader.wait("what was searched", lambda: names(reader)[:2] == ["copy 1779", "copy 1778"])
    expect(table).to_have_attribute("aria-rowcount", "13")
    reader.page.reload()
    reader.wait("the same again", lambda: names(reader)[:2] == ["copy 1779", "copy 1778"])
    reader.page.get_by_role("searchbox").fill("nothing of the kind")
    reader.page.get_by_role("button", name="Show all runs").click()
    reader.wait("all of them", lambda: len(names(reader)) > 11)


def test_a_reader_comes_back_to_the_same_place(own_reader: Reader) -> None:
    """Back in the list, and in a run's page, the reader is at the same place. The list's selected runs still are."""
    reader = own_reader
    reader.ignore_page_errors("status of 404")  # a copy has no rows
    reader.page.add_init_script("performance.now = () => 0")  # however long a page takes to grow
    run = PostedRun(reader.server, "the newest", project="way back")
    run.updates(40)
    copied(reader, run)
    reader.open("#/?project=way+back")
    reader.wait("the list", lambda: names(reader)[:2] == ["the newest", "copy 1"])
    reader.page.get_by_label("Select copy 1", exact=True).check()
    reader.page.mouse.wheel(0, 48 * 1000)
    here = reader.page.get_by_role("link", name="copy 1003", exact=True)
    here.scroll_into_view_if_needed()  # or the click would scroll
    reader.wait("the place in the history", lambda: reader.ask("history.state === scrollY"))
    before = here.bounding_box()
    here.click()
    reader.wait("the run", lambda: reader.text("h1") == "copy 1003")
    assert reader.ask("scrollY") == 0
    reader.page.mouse.wheel(0, 300)
    reader.wait("the place in the history", lambda: reader.ask("history.state === 300"))
    reader.page.go_back()
    expect(here).to_be_visible()
    assert here.bounding_box() == before
    expect(reader.page.get_by_role("toolbar", name="Selected runs")).to_contain_text("1 run")
    reader.page.go_forward()
    reader.wait("the run's place", lambda: reader.ask("scrollY") == 300)
    reader.page.reload()
    reader.wait("the same place", lambda: reader.ask("scrollY") == 300)
    reader.page.get_by_role("link", name="ampmon", exact=True).click()
    reader.wait("the list's top", lambda: names(reader)[:1] == ["the newest"])
    assert reader.ask("scrollY") == 0


def boxes(reader: Reader) -> Any:
    return reader.ask(
        "[...document.querySelectorAll('.runs tbody tr')].map(row => row.getBoundingClientRect().toJSON())"
    )


def test_who_signed_in_at_a_proxy_signs_out_there(own_reader: Reader) -> None:
    """The page names the user that the proxy vouches for, and has no sign-out, which the next request would undo."""
    reader = own_reader
    reader.page.context.clear_cookies()
    reader.page.set_extra_http_headers({"X-Forwarded-User": "ada", "X-Forwarded-Proto": "https"})
    reader.load("#/")
    reader.page.get_by_role("button", name="Signed in as ada").click()
    dialog = reader.page.get_by_role("dialog")
    expect(dialog).to_contain_text("sign out there")
    expect(dialog.get_by_role("button")).to_have_text(["Close"])


def enter_as(reader: Reader, owner: str) -> None:
    """Sign in by a token of an owner who may read and ingest in the project of these runs."""
    wanted = {"name": owner, "owner": owner, "scopes": ["read", "ingest"], "projects": ["tests"]}
    made = json.loads(reader.server.request("POST", "/api/v1/tokens", json=wanted).data)
    headers = {"Authorization": f"Bearer {made['token']}"}
    link = json.loads(reader.server.request("POST", "/api/v1/login-links", headers=headers).data)
    reader.page.context.request.get(link["url"], max_redirects=0)


def test_columns_are_chosen_and_ordered(own_reader: Reader) -> None:
    """The browser keeps the chosen columns and their order. The loss is shown as the last and the minimum."""
    run = PostedRun(own_reader.server, "with a loss")
    run.logs({"loss": loss} for loss in (2.0, 0.5, 0.75))
    own_reader.open("#/?search=with+a+loss")
    loss = "table.runs td[data-name=Loss]"
    own_reader.wait("the loss", lambda: own_reader.text(loss) == "0.75 (min\u00a00.5)")
    usual = own_reader.texts("table.runs th")
    assert "Owner" not in usual
    own_reader.page.get_by_label("Choose and order the columns").click()
    own_reader.page.get_by_role("checkbox", name="Owner").check()
    own_reader.page.get_by_role("checkbox", name="Project").uncheck()
    own_reader.page.get_by_label("Move Loss to the left").click()
    chosen = ["Run", "Status", "Loss", *(each for each in usual[3:] if each != "Loss"), "Owner"]
    assert [each.split(" ↓")[0] for each in own_reader.texts("table.runs th")] == chosen
    assert own_reader.text("table.runs td[data-name=Owner]") == "tester"
    own_reader.load("#/?search=with+a+loss")
    own_reader.wait("the columns", lambda: own_reader.texts("table.runs th") == chosen)
    own_reader.page.get_by_label("Choose and order the columns").click()
    own_reader.page.get_by_role("button", name="Default columns").click()
    assert own_reader.texts("table.runs th") == usual


def test_names_diagnoses_and_ages_are_whole(reader: Reader) -> None:
    """At 1440 pixels a name of forty letters, a diagnosis and the longest age are not cut off.

    With less room, a loss or skips take two lines, and columns are left out before the diagnosis is too narrow to read.
    """
    name = "gpt2-medium-fp16-lr3e-4-growth500-seed17"
    run = PostedRun(reader.server, name)
    run.updates(20)
    run.updates(20, skipped=True)
    reader.open(f"#/?search={name}")
    reader.wait("the diagnosis", lambda: reader.text("table.runs td[data-name=Diagnosis]"))
    cut = """[...document.querySelectorAll("table.runs tbody :is(td, a, .verdict > *)")]
        .filter(({scrollWidth, clientWidth, scrollHeight, clientHeight}) =>
            scrollWidth > clientWidth || scrollHeight > clientHeight + 1)
        .map((each) => each.textContent)"""
    assert reader.ask(cut) == []
    longest = """([column, words]) => {
        const cell = document.querySelector(`table.runs td[data-name="${column}"]`);
        const held = [...cell.childNodes];
        cell.replaceChildren(words);
        const widths = [cell.scrollWidth, cell.clientWidth, cell.closest("tr").offsetHeight];
        cell.replaceChildren(...held);
        return widths;
    }"""
    diagnosis = (
        "Initial scale too high: 12 warm-up skips in the first 136 steps, down to 524 288 = 2¹⁹"
    )
    reader.page.evaluate(
        "words => { document.querySelector('.runs .verdict > :last-child').textContent = words }",
        diagnosis,
    )
    assert reader.ask(cut) == []
    for column, words in (("Age", "59 min ago"), ("Skipped", "151 (75.5\u202f%)")):
        needed, given, _ = reader.page.evaluate(longest, [column, words])
        assert needed == given, column
    reader.size(1200)
    for column, words in (
        ("Loss", "-1.23e-12 (min\u00a0-4.56e-12)"),
        ("Skipped", "123\u202f456 (0.049\u202f%)"),
    ):
        needed, given, height = reader.page.evaluate(longest, [column, words])
        assert (needed, height) == (given, 48), column
    widths = """[document.querySelector("td[data-name=Diagnosis]").clientWidth,
        document.documentElement.scrollWidth - innerWidth]"""
    for width in (1440, 1351, 1211, 1121, 981, 921, 768):
        reader.size(width)
        diagnosis, beyond = reader.ask(widths)
        assert diagnosis >= 100, width
        assert beyond <= 0


def test_long_names_that_differ_at_their_ends_are_told_apart(reader: Reader) -> None:
    """On any screen, the list and a comparison's tables show both ends of a long name. A comparison has all of it."""
    stem = "llama3-8b_fp16_dataset-web-edu-v2_lr1e-4_wd0.1_bs512_seq8192_warmup2000_cosine"
    posted = [PostedRun(reader.server, f"{stem}_seed{seed}") for seed in range(2)]
    for run in posted:
        run.updates(2)
    shown = """selector => [...document.querySelectorAll(selector)].map((one) =>
        one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight + 1 ? "cut" : one.textContent)"""
    views = {
        f"#/?search={stem}": ("table.runs .named a",),
        f"#/compare?runs={','.join(str(run.run_id) for run in posted)}": (
            ".compared a",
            ".facts:not(.marked) thead th",
        ),
    }
    for view, selectors in views.items():
        reader.open(view)
        whole = reader.page.get_by_role("link", name=f"{stem}_seed1", exact=True)
        expect(whole).to_be_visible()
        for selector in selectors:
            reader.wait("two names", lambda at=selector: len(reader.texts(at)) == 2)
            for width in (1440, 820, 390):
                reader.size(width)
                names = reader.page.evaluate(shown, selector)
                ends = {name[:6] + name[-6:] for name in names}
                assert ends == {"llama3_seed0", "llama3_seed1"}, (selector, width)
    assert reader.texts(".compared a") == [f"{stem}_seed0", f"{stem}_seed1"]
    heading = reader.page.get_by_role("columnheader", name=f"{stem}_seed1", exact=True).first
    expect(heading).to_be_visible()
    PostedRun(reader.server, f"{stem}_seed2").updates(2)
    reader.page.get_by_role("searchbox", name="Add a run").fill(stem)
    reader.wait("the third", lambda: reader.texts(".offered button") == [f"{stem}_seed2 · tests"])
    assert reader.page.evaluate(shown, ".offered button") == [f"{stem}_seed2 · tests"]
    reader.page.keyboard.press("Escape")
