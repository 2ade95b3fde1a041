"""The page on small screens, as at 400 % zoom, and in a high-contrast mode."""

from __future__ import annotations

from playwright.sync_api import expect

from batches import Trainer
from posted import PostedRun, post
from web.layout import faults
from web.reader import Reader
from web.views import settle


WIDTH = 320
TABLET = 768
NAME = "n" * 120


def test_long_names_make_no_view_wider_than_a_small_screen(reader: Reader) -> None:
    """A long project, scaler, logged name and number of lost records break or are cut, also in a comparison.

    There, the whole list of what may be added is on the screen.
    """
    runs = [PostedRun(reader.server, NAME, project=NAME) for _ in range(2)]
    for run in runs:
        run.updates(2)
        run.lose(100_000)
        run.logs([{NAME: 0.5}] * 3)
    other = Trainer(runs[0].run_id, scaler=NAME)
    post(reader.server, other.batch(other.updates(2)))
    reader.size(WIDTH)
    reader.show(runs[0])
    reader.wait("what was lost", lambda: "lost" in reader.text(".health"))
    assert faults(reader.page) == []
    reader.open(f"#/compare?runs={runs[0].run_id},{runs[1].run_id}")
    settle(reader)
    assert faults(reader.page) == []
    PostedRun(reader.server, NAME).updates(2)
    reader.page.get_by_role("searchbox", name="Add a run").fill(NAME)
    offered = reader.page.locator(".offered button").first.bounding_box()
    assert offered is not None
    assert 0 <= offered["x"] <= offered["x"] + offered["width"] <= WIDTH


def test_the_table_of_parameters_fits_a_tablet_and_a_phone(reader: Reader) -> None:
    """A tablet held upright shows every column without scrolling sideways, and a phone each name on one line."""
    run = PostedRun(reader.server)
    run.updates(3)
    reader.size(TABLET)
    reader.arrive(run)
    reader.wait("the parameters", lambda: reader.texts("[data-ledger=parameters] tbody tr"))
    assert faults(reader.page) == []
    reader.size(390)
    cells = "[...document.querySelectorAll('[data-ledger=parameters] td')]"
    assert len(reader.ask(f"[...new Set({cells}.slice(1).map(cell => cell.offsetHeight))]")) == 1


def test_the_values_above_the_charts_are_whole_in_large_text(reader: Reader) -> None:
    """In text of twice the size, no line of values is cut at its foot."""
    run = PostedRun(reader.server)
    run.updates(3)
    reader.show(run)
    cut = reader.ask("""[...document.querySelectorAll(".stack .readout")].filter((row) => {
        Object.assign(row.style, {fontSize: "26px", lineHeight: "40px"});
        const { bottom } = row.getBoundingClientRect();
        return [...row.children].some((value) => value.getBoundingClientRect().bottom > bottom + 1);
    }).length""")
    assert cut == 0


def test_a_long_title_begins_beside_its_button(reader: Reader) -> None:
    """On a phone, a chart's title of two lines begins beside its (i)."""
    run = PostedRun(reader.server)
    run.updates(3)
    reader.size(390)
    reader.arrive(run)
    reader.tab("whatif")
    header = reader.figure("simulated").locator("header")
    expect(header.locator("h2")).to_have_text("Simulator: loss scale under another policy")
    title, button = header.evaluate("""header => ["h2", ".about"].map(
        each => header.querySelector(each).getBoundingClientRect().toJSON())""")
    assert title["height"] > 40
    assert abs(button["y"] - title["y"]) < 10


def test_the_outline_of_a_focused_run_is_whole(reader: Reader) -> None:
    """At 200 % zoom a list has the rows of a phone, and the keyboard's place is outlined on all sides."""
    run = PostedRun(
        reader.server, "one scaler, two nets, with a rather long name", project="outline"
    )
    run.updates(2)
    reader.size(390)
    reader.open("#/?project=outline")
    link = reader.page.locator(".named a").first
    link.press("ArrowDown")
    outside = """link => {
        const {outlineOffset, outlineWidth} = getComputedStyle(link);
        const [top, cell] = [link, link.closest("td")].map((one) => one.getBoundingClientRect().top);
        return top - parseFloat(outlineOffset) - parseFloat(outlineWidth) - cell;
    }"""
    assert link.evaluate(outside) >= 0


def test_a_phone_shows_the_legend_the_open_tab_and_a_lost_connection(own_reader: Reader) -> None:
    """The legend of three runs fits above the plot. The tab of a link is in sight. Words of trouble have a row."""
    reader = own_reader
    runs = [PostedRun(reader.server, f"gpt-small-lr{n}e-4") for n in range(3)]
    for run in runs:
        run.updates(5)
    reader.size(390, 844)
    reader.open(f"#/compare?runs={','.join(str(run.run_id) for run in runs)}")
    reader.wait(
        "the legend", lambda: reader.plot("scale", "plot.querySelector('.legend')") is not None
    )
    above = "plot.querySelector('.legend').getBoundingClientRect().top - plot.getBoundingClientRect().top"
    assert reader.plot("scale", above) >= 0
    reader.open(f"#{runs[0].path}?tab=system")
    tab = reader.page.locator("#tab-system")
    reader.wait("the tab", lambda: (tab.bounding_box() or {"x": 999})["x"] < 390 - 60)
    reader.ignore_page_errors("Failed to load resource|ERR_")
    reader.server.kill()
    reader.wait("the loss", lambda: "Connection lost" in reader.text("#connection"))
    link, words = (
        reader.page.locator(each).bounding_box() for each in (".bar .mark", "#connection")
    )
    assert link is not None
    assert words is not None
    assert words["y"] >= link["y"] + link["height"]
    assert faults(reader.page) == []


def test_high_contrast_keeps_what_tells_apart(reader: Reader) -> None:
    """In forced colors, a legend's squares keep their colors, and the open tab and the chosen axis stand out."""
    run = PostedRun(reader.server)
    run.updates(3)
    reader.show(run)
    reader.wait("the legend", lambda: reader.points("underflow"))
    reader.page.emulate_media(forced_colors="active")
    colours = """([selector, name]) => [...document.querySelectorAll(selector)]
        .filter((one) => one.checkVisibility()).map((one) => getComputedStyle(one)[name])"""
    for selector, name in (
        ("[data-figure=underflow] .readout i", "backgroundColor"),
        ("[role=tab]", "borderBottomColor"),
        ("[data-x=step], [data-x=time]", "backgroundColor"),
    ):
        found = reader.page.evaluate(colours, [selector, name])
        assert len(set(found)) >= 2, (selector, found)
    on_highlight = reader.ask("""(() => {
        const one = document.body.appendChild(document.createElement("i"));
        one.style.cssText = "forced-color-adjust: none; color: HighlightText";
        const { color } = getComputedStyle(one);
        one.remove();
        return color;
    })()""")
    assert reader.page.evaluate(colours, ["[data-x=step]", "color"]) == [on_highlight]
    reader.page.emulate_media(forced_colors="none")
