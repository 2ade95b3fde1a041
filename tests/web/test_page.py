"""The page in a real browser at a real server: what it shows and how it follows."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from shutil import copytree, rmtree
from uuid import uuid4

import pytest
from playwright.sync_api import Request, expect

from posted import PostedRun
from web.axe import violations
from web.reader import NOWHERE, Reader, light
from web.test_valid import faults_of_html


SKIPPED = "[data-number=skipped] dd"
QUIET = """
    const real = setInterval;
    window.setInterval = (work, ms) => real(() => window.quiet || work(), ms);
    window.quiet = true;"""
"""While ``quiet`` is true, nothing polls and no time is updated."""


def test_the_page_follows_a_server_from_its_first_run_to_its_loss(own_reader: Reader) -> None:
    """The first run appears and is followed by the stream alone. A lost server is reported and found again."""
    reader = own_reader
    light(reader.page).add_init_script(QUIET)
    reader.open()
    run = _filled(reader)
    _followed(reader, run)
    _lost_and_found(reader, run)


def _filled(reader: Reader) -> PostedRun:
    """Without a run, the page shows how to watch one, and the demo. The first run appears without a reload."""
    reader.wait("the hint", lambda: "ampmon.GradScaler()" in reader.text("main"))
    assert {"ampmon run train.py", "ampmon demo"} <= set(reader.text("main").splitlines())
    assert violations(reader.page) == []
    reader.wait("the stream", lambda: reader.text("#connection") == "Live")
    run = PostedRun(reader.server, "the first")
    run.updates(5)
    reader.wait("the run", lambda: reader.texts("table.runs td:first-child a") == ["the first"])
    assert "ampmon demo" not in reader.text("main")
    return run


def _followed(reader: Reader, run: PostedRun) -> None:
    """The stream brings updates to the numbers, a skip to the table and the end to the status."""
    reader.arrive(run)
    reader.ask("window.notReloaded = true")
    run.updates(10)
    reader.wait("more updates", lambda: reader.text(SKIPPED) == "0 of 15")
    run.updates(skipped=True)
    reader.tab("skips")
    reader.wait("the skip's row", lambda: len(reader.texts("[data-ledger=skips] tbody tr")) == 1)
    run.event("finish")
    reader.wait("the end", lambda: "finished" in reader.text(".run header"))
    assert reader.ask("window.notReloaded && window.quiet")


def _lost_and_found(reader: Reader, run: PostedRun) -> None:
    """While the server is away the page says so and for how long, but announces only the loss. Then it catches up."""
    reader.wait("all of it", lambda: reader.text(SKIPPED) == "1 of 16")
    reader.ask("window.quiet = false")
    reader.ignore_page_errors("Failed to load resource|ERR_")
    reader.server.kill()
    reader.wait("the loss", lambda: "Connection lost" in reader.text("#connection"))
    reader.wait("its age", lambda: reader.text("#connection").endswith(" s ago"))
    assert reader.text("#connection [role=status]") == "Connection lost; retrying"
    assert reader.text(SKIPPED) == "1 of 16", "what was shown stays"
    reader.server.start()
    reader.wait("the return", lambda: reader.text("#connection") == "Live")
    run.updates(4)
    reader.wait("the news", lambda: reader.text(SKIPPED) == "1 of 20")


def test_charts_follow_a_run_of_a_restored_database(own_reader: Reader, tmp_path: Path) -> None:
    """A page that is open while the server restarts on a backup draws the run as the backup has it, and its news."""
    reader = own_reader
    server = reader.server
    reader.ignore_page_errors("Failed to load resource|ERR_")
    run = PostedRun(server)
    run.updates(20)
    server.stop()
    copytree(server.directory, tmp_path / "backup")
    server.start()
    run.updates(20)
    run.updates(20)
    reader.show(run)
    reader.wait("all of them", lambda: reader.newest() == 59)
    server.stop()
    rmtree(server.directory)
    copytree(tmp_path / "backup", server.directory)
    server.start()
    reader.wait("the backup's", lambda: reader.newest() == 19)
    run.updates(5)
    reader.wait("the news", lambda: reader.newest() == 64)


def test_a_page_that_grows_at_once_is_scrolled_to_its_place(passer_by: Reader) -> None:
    """A page that is too short for the reader's place may grow before the browser reports that it was scrolled."""
    run = PostedRun(passer_by.server)
    run.updates(5)
    passer_by.arrive(run)
    passer_by.ask(
        """(() => {
        const now = performance.now();
        performance.now = () => now;  // however long the browser takes, the page is new
        scrollTo(0, 0);
        history.replaceState(5000, "");
        dispatchEvent(new Event("hashchange"));
        const more = document.createElement("div");
        more.style.height = "9000px";
        document.getElementById("content").append(more);
        })()"""
    )
    passer_by.wait("its place", lambda: passer_by.ask("scrollY") == 5000)


def test_a_signed_out_page_loads_no_chart_library(own_reader: Reader) -> None:
    """A page whose session ends soon after it opened does not load the library early: the server would refuse it."""
    own_reader.ignore_page_errors("status of 401")
    own_reader.load()
    own_reader.page.context.clear_cookies()
    own_reader.ask("location.hash = '#/alerts'")
    own_reader.wait("the box", lambda: own_reader.page.locator("#signin[open]").count())
    own_reader.page.wait_for_timeout(1200)  # after WARM_MS in main.js


def test_the_list_says_how_each_run_is(reader: Reader) -> None:
    """A row has status, scale, skips with their share, and subnormal share. Equal tags are shown once."""
    run = PostedRun(reader.server, "one of them", tags=("nightly", "nightly", "b"))
    reader.open()
    run.updates(9)
    run.updates(skipped=True)
    reader.wait("the updates", lambda: reader.text("table.runs td[data-name=Steps]") == "10")
    row = dict(
        zip(
            reader.texts("table.runs th"),
            reader.texts("table.runs tbody tr:first-child td"),
            strict=True,
        )
    )
    assert row["Run"].partition("\n")[0] == "one of them"
    assert row["Status"].endswith("running")
    assert row["Scale now"] == "2¹⁵"
    assert row["Skipped"] == "1 (10 %)"
    assert row["Subnormal now"] == "0 %"
    run.updates()
    reader.wait("its row", lambda: reader.text("table.runs td[data-name=Steps]") == "11")
    assert reader.texts("table.runs tbody tr:first-child .tag") == ["nightly", "b"]


def test_a_run_shows_its_charts_numbers_and_tables(reader: Reader) -> None:
    """A run's four charts are drawn, its tables name what overflowed, and its numbers have definitions.

    Definitions open by keyboard and close with Escape, and nothing is animated, since pages stay open for days.
    """
    run = PostedRun(reader.server)
    run.updates(20)
    run.updates(skipped=True)
    reader.ask("performance.clearResourceTimings()")  # of other tests' runs
    reader.show(run)
    reader.page.focus("[data-number=headroom] dfn")
    assert "65 504" in reader.text("#tip")
    edges = reader.ask(
        "(({left, right}) => [left, innerWidth - right])(document.getElementById('tip').getBoundingClientRect())"
    )
    assert min(edges) >= 0
    reader.page.keyboard.press("Escape")
    assert reader.text("#tip") == ""
    for name in ("scale", "skips", "underflow", "exponents"):
        reader.figure(name).scroll_into_view_if_needed()
        expect(reader.figure(name).locator(".main-svg").first).to_be_visible()
        assert reader.caption(name)
    assert reader.text("[data-number=records] dd") == ""
    reader.page.get_by_text("Recording, 0 lost").click()
    assert reader.text("[data-number=records] dd") == "22 of 22"
    assert reader.text(SKIPPED) == "1 of 21"
    undefined = reader.ask(
        "[...document.querySelectorAll('.numbers dfn')].filter(e => !e.dataset.definition).length"
    )
    assert undefined == 0
    reader.tab("skips")
    skip = reader.wait("the skip", lambda: reader.text("[data-ledger=skips] tbody tr"))
    assert "head.weight 3 inf" in skip
    assert "2¹⁶ → 2¹⁵" in skip
    reader.tab("gradients")
    reader.wait("parameters", lambda: len(reader.texts("[data-ledger=parameters] tbody tr")) == 3)
    reader.tab("events")
    assert "init" in reader.wait("events", lambda: reader.text("[data-ledger=events] tbody tr"))
    assert reader.text(".run .badge").endswith("running")
    assert reader.ask("document.getAnimations().length") == 0
    _is_valid(reader)
    reader.tab("system")  # there are no ranks to compare or to choose from
    reader.wait("the times", lambda: reader.plot("timing", "plot._fullData?.length"))
    assert not reader.figure("ranks").is_visible()
    requested = (
        "performance.getEntriesByType('resource').some(({name}) => name.includes('/ranks?'))"
    )
    assert not reader.ask(requested)
    assert not reader.page.locator("select[aria-label=Rank]").is_visible()


def _is_valid(reader: Reader) -> None:
    """The HTML of a run's page parses without an error and has no id twice."""
    drawn = "<!doctype html>" + reader.ask("document.documentElement.outerHTML")
    assert faults_of_html(drawn) == []
    ids = re.findall(r'\sid="([^"]+)"', drawn)
    assert len(ids) == len(set(ids))


def test_the_line_about_a_run_keeps_its_length(reader: Reader) -> None:
    """Its duration changes each second, and would move the page where the line just fits."""
    run = PostedRun(reader.server)
    run.updates(1)
    reader.arrive(run)
    widths = reader.ask("""["1 s", "59 min 59 s"].map((words) => {
        const about = document.querySelector(".run > header .about").cloneNode(true);
        about.querySelector(".elapsed").textContent = words;
        document.querySelector(".run > header .about").after(about);
        const { width } = about.getBoundingClientRect();
        about.remove();
        return width;
    })""")
    assert widths[0] == widths[1]


def test_the_buttons_of_a_run_stay_beside_the_line_about_it(reader: Reader) -> None:
    """In a window too narrow for both and the name, both are in the next row, at its right end."""
    run = PostedRun(reader.server)
    run.updates(1)
    reader.arrive(run)
    for width in range(1440, 900, -60):
        reader.size(width)
        about, buttons, right = reader.ask("""[".about", ".own"].map((each) =>
            document.querySelector(`.run > header ${each}`).getBoundingClientRect().bottom
        ).concat(document.querySelector(".run > header .own").getBoundingClientRect().right)""")
        assert abs(about - buttons) < 20, width
        assert abs(right - (width - 32 + 8)) < 20, width


def test_a_zoom_holds_while_data_arrive_and_binds_all_charts(reader: Reader) -> None:
    """A drag or its buttons zoom every chart and the address. New data do not undo it, and a double click does."""
    run = PostedRun(reader.server)
    run.updates(100)
    reader.show(run)
    reader.drag(-200, 100)
    reader.wait("the zoom", lambda: "start=" in reader.ask("location.hash"))
    reader.wait("its data", lambda: reader.newest() < 99)
    zoomed = reader.range()
    run.updates(50)
    reader.wait("the news", lambda: reader.text(SKIPPED) == "0 of 150")
    run.updates(10)  # a chart that moved for the first has moved once the numbers show these
    reader.wait("more news", lambda: reader.text(SKIPPED) == "0 of 160")
    reader.catch_up()
    assert reader.range() == zoomed
    ranges = "[...document.querySelectorAll('.js-plotly-plot')].map(e => e.layout.xaxis.range)"
    for chart in reader.page.locator(
        ".js-plotly-plot"
    ).all():  # a chart off screen is drawn when it is scrolled to
        chart.scroll_into_view_if_needed()
    reader.wait("all charts", lambda: {*map(tuple, reader.ask(ranges))} == {tuple(zoomed)})
    assert len(reader.ask(ranges)) >= 2
    reader.figure("scale").locator(".plot").dblclick()
    reader.wait("the whole run", lambda: reader.range() == [-0.5, 159.5])
    assert "start=" not in reader.ask("location.hash")
    reader.page.get_by_label("Zoom in").press("Enter")
    reader.wait("half the run", lambda: reader.range() == [39.5, 119.5])
    reader.page.get_by_label("Later").press("Enter")
    reader.wait("the part after it", lambda: reader.range() == [79.5, 159.5])
    reader.page.keyboard.press("0")
    reader.wait("the whole run", lambda: reader.range() == [-0.5, 159.5])
    _drag_survives_the_news(reader, run)


def _drag_survives_the_news(reader: Reader, run: PostedRun) -> None:
    """Updates that arrive during a drag do not end it. A press of another button holds no update back."""
    box = reader.figure("scale").locator(".plot").bounding_box()
    assert box is not None
    reader.page.mouse.move(box["x"] + 300, box["y"] + 60)
    reader.page.mouse.down(button="right")
    run.updates(10)
    reader.wait("the news", lambda: reader.range() == [-0.5, 169.5])
    reader.page.mouse.up(button="right")
    reader.drag(-200, -150, release=False)
    run.updates(30)
    reader.wait("the news", lambda: reader.text(SKIPPED) == "0 of 200")
    run.updates(1)
    reader.wait("more news", lambda: reader.text(SKIPPED) == "0 of 201")
    reader.catch_up()
    reader.page.mouse.move(reader.page.viewport_size["width"] / 2 - 50, 0)
    reader.page.mouse.up()
    reader.wait("the zoom", lambda: "start=" in reader.ask("location.hash"))


def test_the_address_holds_the_view_by_the_readers_clock(reader: Reader) -> None:
    """A link opens the same range on the same axis, and Back returns.

    The time axis is in the reader's zone, and a zoom there requests the range that is seen.
    """
    developer = reader.page.context.new_cdp_session(reader.page)
    developer.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    run = PostedRun(reader.server)
    run.updates(50)
    reader.show(run, "?start=10&stop=20")
    reader.wait("the stretch", lambda: reader.range() == [9.5, 19.5])
    reader.page.keyboard.press("0")
    reader.wait("the whole run", lambda: reader.range() == [-0.5, 49.5])
    reader.page.click("[data-x=time]")
    reader.wait("time", lambda: reader.plot("scale", "plot.layout.xaxis.type") == "date")
    assert "x=time" in reader.ask("location.hash")
    reader.figure("underflow").scroll_into_view_if_needed()
    reader.wait(
        "the zone",
        lambda: "(UTC+5:30)" in (reader.plot("underflow", "plot.layout.xaxis.title.text") or ""),
    )
    low, high = (_time_at(end, "+05:30") for end in reader.range())
    assert low < run.started + 50 * 1_000_000
    assert high > run.started
    reader.page.get_by_label("Zoom in").press("Enter")
    reader.wait("half of it", lambda: "start=" in reader.ask("location.hash"))
    start = int(re.search(r"start=(\d+)", reader.ask("location.hash"))[1])
    assert low < start < high
    reader.wait("its chart", lambda: _time_at(reader.range()[0], "+05:30") > low)
    reader.drag(-50, 50, "underflow")
    reader.wait("less", lambda: f"start={start}" not in reader.ask("location.hash"))
    dragged = int(re.search(r"start=(\d+)", reader.ask("location.hash"))[1])
    developer.detach()
    assert start < dragged < high
    for _ in range(4):
        reader.page.go_back()
    reader.wait("the stretch again", lambda: reader.range() == [9.5, 19.5])


def _time_at(shown: str, zone: str) -> int:
    """The time that a date of a chart stands for, in us since the epoch."""
    return round(1e6 * datetime.fromisoformat(shown.removesuffix("Z") + zone).timestamp())


def test_times_keep_one_zone_across_a_change_of_clocks(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The axis, the row above a chart and a drag agree about a skip in the hour that New York's clocks leave out."""
    developer = reader.page.context.new_cdp_session(reader.page)
    developer.send("Emulation.setTimezoneOverride", {"timezoneId": "America/New_York"})
    skipped = round(1e6 * datetime(2026, 3, 8, 7, tzinfo=timezone.utc).timestamp())
    monkeypatch.setattr("posted.SPACING_US", 600_000_000)
    run = PostedRun(reader.server)
    run.started = skipped - 20 * 600_000_000
    run.updates(20)
    run.updates(skipped=True)
    run.updates(40)
    reader.show(run, "?x=time")
    reader.wait("the axis", lambda: reader.plot("skips", "plot.layout.meta.zone") == -240)
    plot = reader.figure("skips").locator(".plot")
    bar = "plot._fullLayout.xaxis.d2p(plot._fullData[0].x[0]) + plot._fullLayout.margin.l"
    across = reader.plot("skips", bar)

    def read() -> str:
        plot.hover(position={"x": across, "y": 30})
        return reader.text("[data-figure=skips] .readout")

    reader.wait("the skip", lambda: "skipped" in read())
    assert re.match(r"02:5\d:\d\d UTC−4", read())
    off = across - reader.plot("skips", "plot.clientWidth / 2")
    reader.drag(off - 20, off + 20, "skips")
    reader.wait("the zoom", lambda: "start=" in reader.ask("location.hash"))
    start, stop = map(int, re.findall(r"=(\d+)", reader.ask("location.hash")))
    assert start < skipped < stop < start + 3600 * 10**6
    developer.detach()


def test_missing_data_is_said(reader: Reader) -> None:
    """Left-out samples, possible losses and the monitor's errors are notices above the charts. Losses are a finding."""
    run = PostedRun(reader.server)
    run.updates(5)
    run.lose(3)
    run.updates(5)
    run.event("dropped", count=7)
    run.event("thinned", count=120)
    run.event("spool", kept="memory", why="/home is on a network mount (nfs4)", window_ms=250)
    run.event("error", where="probe", type="RuntimeError", message="no <b>luck</b>")
    reader.show(run)
    notices = reader.wait(
        "notices", lambda: len(reader.texts(".notices li")) == 3 and reader.texts(".notices li")
    )
    assert "Samples of 120 steps were dropped" in notices[0]
    assert "pass through memory, because /home is on a network mount (nfs4); a killed" in notices[1]
    assert "may lose the last 250 ms." in notices[1]
    assert "failed 1 time" in notices[2]
    gaps = "3 records were lost, and 7 records were dropped"
    reader.wait("the finding", lambda: reader.text(".answer") == gaps)
    assert reader.text(".health").startswith("Recording, 3 lost")
    assert "There is no record of 3 steps in between." in reader.caption("scale")


def test_a_chart_without_data_says_why(reader: Reader) -> None:
    """Before the first update, before the first sample, and in an empty range, a chart says why it is empty.

    The values of the range before are not shown. Before the first update, a chart has only the room of its reason.

    Without samples there is no slider, activations say how to record them, and the first logged value brings its chart.
    """
    run = PostedRun(reader.server)
    reader.open(f"#{run.path}")
    reader.wait(
        "the reason", lambda: "No steps recorded" in reader.text("[data-figure=scale] .empty")
    )
    assert reader.figure("scale").evaluate("chart => chart.offsetHeight") < 80
    run.updates(3, sampled=False)
    reader.wait("the chart", reader.points)
    reader.wait(
        "no sample",
        lambda: "No gradient sampled" in reader.text("[data-figure=underflow] .empty"),
    )
    expect(reader.figure("scalars")).to_be_hidden()
    run.logs([{"accuracy": 1.0}])
    reader.wait("the value", lambda: reader.scrolled_to("scalars"))
    assert reader.text("[data-figure=scalars] h2") == "accuracy"
    for name, words in (
        ("exponents", "No gradient sampled"),
        ("activations", "Config(activations=100)"),
    ):
        if name == "activations":
            reader.tab(name)
        reader.figure(name).scroll_into_view_if_needed()
        empty = f"[data-figure={name}] .empty"
        reader.wait(name, lambda empty=empty, words=words: words in reader.text(empty))
    assert not reader.page.get_by_label("Elements lost at another loss scale").is_visible()
    reader.scrolled_to()
    expect(reader.figure("scale").locator(".readout")).to_be_visible()
    reader.ask(f"location.hash = '#{run.path}?start=500&stop=600'")
    reader.wait(
        "no step",
        lambda: "No step in steps 500 – 599" in reader.text("[data-figure=scale] .empty"),
    )
    expect(reader.figure("scale").locator(".readout")).to_be_hidden()


def test_names_are_inert(reader: Reader) -> None:
    """Markup in names and error messages is shown as text and runs nothing."""
    evil = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>&amp;'
    run = PostedRun(reader.server, evil, parameters=("a", evil))
    run.updates(5)
    run.updates(skipped=True)
    run.event("error", where=evil, type="E", message=evil)
    reader.open()
    named = "[...document.querySelectorAll('table.runs td:first-child a')].map((one) => one.title)"
    reader.wait("the name", lambda: evil in reader.ask(named))
    assert f"{evil[:22]}…{evil[-21:]}" in reader.texts("table.runs td:first-child a")
    assert reader.ask("document.querySelectorAll('main img, main script').length") == 0
    reader.show(run)
    assert reader.text("h1") == evil
    reader.tab("skips")
    reader.wait("the culprit", lambda: reader.text("[data-ledger=skips] code") == evil)
    reader.tab("gradients")
    reader.wait("the parameter", lambda: evil in reader.texts("[data-ledger=parameters] code"))
    reader.tab("events")
    reader.wait("the event", lambda: evil in reader.text("[data-ledger=events] tbody"))
    assert reader.ask("window.harmed") is None
    assert reader.ask("document.querySelectorAll('main img, main script').length") == 0


def test_a_run_that_comes_after_its_reader_is_shown(reader: Reader) -> None:
    """The address of a run that has not begun shows it once its first updates arrive."""
    reader.ignore_page_errors("404")
    run_id = uuid4()
    reader.open(f"#/runs/{run_id}")
    reader.wait("the words", lambda: "once its first steps arrive" in reader.text("main"))
    PostedRun(reader.server, "late", run_id=run_id)
    reader.wait("the run", lambda: reader.text("h1") == "late")


def test_an_address_that_can_be_no_runs_is_said_to_be_none(passer_by: Reader) -> None:
    """An address that can be no run's says so without a request, and the page still works."""
    reader = passer_by
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    reader.page.on("request", note)
    reader.load("#/runs/%zz")
    reader.wait("the words", lambda: reader.text("h1") == "No such run")
    reader.wait("the server", lambda: reader.text("#connection") == "Live")
    for hash in ("#/runs/abc?x=time", "#/compare?runs=abc,%zz"):
        reader.open(hash)
        reader.wait("the words again", lambda: reader.text("h1") == "No such run")
    reader.catch_up()
    asked = [url.partition("/api/v1/")[2] for url in asked]
    assert "live" in asked
    assert not [each for each in asked if "abc" in each or "zz" in each]
    reader.page.remove_listener("request", note)
    run = PostedRun(reader.server)
    run.updates(5)
    reader.arrive(run)


def test_the_page_loads_until_its_scripts_have_come(passer_by: Reader) -> None:
    """Before, it says that it loads. A slow network takes seconds for them."""
    held = passer_by.hold("**/main.js")
    passer_by.page.goto(f"{passer_by.server.url}/{NOWHERE}", wait_until="commit")
    content = passer_by.page.locator("#content")
    expect(content).to_have_text(re.compile(r"Loading…\s*$"))
    passer_by.wait("the script", lambda: held)
    passer_by.let_go(held)
    expect(content.locator("h1")).to_have_text("Runs")
    expect(content.locator("> .empty")).to_have_count(0)


def test_a_chart_loads_until_its_library_has_come(passer_by: Reader) -> None:
    """While the chart library is on its way, charts whose figures have come say that they load."""
    run = PostedRun(passer_by.server)
    run.updates(3)
    passer_by.open(f"#{run.path}")
    plot = "document.querySelector('[data-figure=scale] .plot:not([hidden])')"
    passer_by.wait("the figure", lambda: passer_by.ask(f"{plot} !== null"))
    assert passer_by.ask(f"getComputedStyle({plot}, '::before').content") == '"Loading…"'


def test_a_date_that_is_read_from_the_right_leaves_the_words_after_it(own_reader: Reader) -> None:
    """In an Arabic browser, the time since a run's start follows the date of the start."""
    developer = own_reader.page.context.new_cdp_session(own_reader.page)
    developer.send("Emulation.setLocaleOverride", {"locale": "ar-EG"})
    run = PostedRun(own_reader.server)
    run.updates(2)
    own_reader.load(f"#{run.path}")
    own_reader.wait("the date", lambda: "started" in own_reader.text("article"))
    gap = own_reader.ask("""(() => {
        const [date] = [...document.querySelectorAll("article span > bdi")];
        const after = document.createRange();
        after.setStartAfter(date);
        after.setEndAfter(date.parentNode.lastChild);
        return after.getBoundingClientRect().left - date.getBoundingClientRect().right;
    })()""")
    assert gap >= -1
