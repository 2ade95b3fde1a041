"""The page in a real browser, before a real server: what it shows, how it follows, and what it never does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import browser as chromium
from posted import PostedRun
from serving import Server


DEADLINE_S = 20.0
SCALE_PLOT = "[data-figure=scale] .plot"


class Page:
    """What a reader sees and does."""

    def __init__(self, chrome: Chrome, server: Server) -> None:
        self.chrome = chrome
        self.server = server

    def text(self, selector: str) -> str:
        """The text of the first element that is there, or "" where none is."""
        found = self.chrome.find_elements(By.CSS_SELECTOR, selector)
        return str(found[0].text).replace("\u202f", " ") if found else ""

    def texts(self, selector: str) -> list[str]:
        found = self.chrome.find_elements(By.CSS_SELECTOR, selector)
        return [element.text.replace("\u202f", " ") for element in found]

    def click(self, selector: str) -> None:
        self.chrome.find_element(By.CSS_SELECTOR, selector).click()

    def ask(self, script: str) -> Any:
        return self.chrome.execute_script(f"return {script}")

    def drawn(self, part: str) -> Any:
        """``part`` of the drawn chart of the scale, or None before it is drawn."""
        return self.ask(f"document.querySelector('{SCALE_PLOT}.js-plotly-plot')?.{part}")

    def points(self) -> int:
        return int(self.drawn("_fullData?.[0]?._length") or 0)

    def range(self) -> Any:
        return self.drawn("layout.xaxis.range")

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """What ``condition`` gives once it is true; ``what`` names it where it never is."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            try:
                if value := condition():
                    return value
            except StaleElementReferenceException:
                pass
            time.sleep(0.05)
        raise AssertionError(f"waited in vain for {what}; the page says:\n{self.text('body')}")

    def open(self, path: str = "#/") -> None:
        self.chrome.get(f"{self.server.url}/{path}")

    def show(self, run: PostedRun, query: str = "") -> None:
        """Open a run and wait for its name and its first chart, which come with answers of their own."""
        self.open(f"#{run.path}{query}")
        self.wait("the chart of the scale", self.points)
        self.wait("the name", lambda: self.text("h1") != "…")

    def drag(self, start: int, end: int) -> None:
        """Drag across the chart of the scale, from and to pixels off its middle, with a pause on the way."""
        plot = self.chrome.find_element(By.CSS_SELECTOR, SCALE_PLOT)
        (
            ActionChains(self.chrome)
            .move_to_element_with_offset(plot, start, 0)
            .click_and_hold()
            .move_by_offset((end - start) // 2, 0)
            .pause(0.5)
            .move_by_offset(end - start - (end - start) // 2, 0)
            .release()
            .perform()
        )

    def quarrels(self) -> list[str]:
        """Errors in the console, violations of the policy among them, and requests to anywhere but the server."""
        foreign = [
            address
            for address in chromium.requested(self.chrome)
            if not address.startswith(self.server.url + "/")
        ]
        return chromium.console_errors(self.chrome) + foreign


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One server and one browser, let in, for all tests that mind neither the other runs nor a cookie."""
    directory = tmp_path_factory.mktemp("shared")
    server = Server(directory / "ampmon")
    server.start()
    chrome = chromium.start(directory / "chromium")
    chrome.get(server.login_link())
    yield Page(chrome, server)
    chrome.quit()
    server.stop()


@pytest.fixture
def page(shared: Page) -> Page:
    """The shared page, with no word of an earlier test in its logs, its window or its storage."""
    shared.chrome.get("about:blank")
    shared.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    shared.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    shared.quarrels()
    return shared


@pytest.fixture
def own_page(browser: Chrome, server: Server) -> Page:
    """A page on a store that is empty, before a server that may be killed."""
    browser.get(server.login_link())
    return Page(browser, server)


def test_an_empty_store_says_how_to_fill_it(own_page: Page) -> None:
    """Without a run the page shows the line to change and the demo; the first run appears by itself."""
    page = own_page
    page.wait("the hint", lambda: "ampmon.GradScaler()" in page.text("main"))
    assert "ampmon demo" in page.text("main")
    run = PostedRun(page.server, "the first")
    run.updates(3)
    page.wait("the run", lambda: page.texts("table.runs td:first-child a") == ["the first"])
    assert "ampmon demo" not in page.text("main")
    assert page.quarrels() == []


def test_the_list_says_how_each_run_is(page: Page) -> None:
    """A row has the run's status in a word, its scale now, its skips with their share, and its subnormal share."""
    run = PostedRun(page.server, "one of them")
    page.open()
    run.updates(9)
    run.updates(skipped=True)
    page.wait("the updates", lambda: page.text("table.runs td[data-name=Updates]") == "10")
    row = dict(
        zip(
            page.texts("table.runs th"),
            page.texts("table.runs tbody tr:first-child td"),
            strict=True,
        )
    )
    assert row["Run"] == "one of them"
    assert row["Status"].endswith("running")
    assert row["Scale now"] == "32 768 = 2^15"
    assert row["Skipped"] == "1 (10 %)"
    assert row["Subnormal now"] == "0 %"


def test_a_run_shows_its_charts_numbers_and_tables(page: Page) -> None:
    """All four charts are drawn, the numbers have definitions, and the tables name what overflowed."""
    run = PostedRun(page.server)
    run.updates(20)
    run.updates(skipped=True)
    page.show(run)
    for name in ("scale", "skips", "underflow", "exponents"):
        figure = f"[data-figure={name}]"
        page.chrome.execute_script(f"document.querySelector('{figure}').scrollIntoView()")
        page.wait(
            name, lambda figure=figure: page.ask(f"!!document.querySelector('{figure} .main-svg')")
        )
        assert page.text(f"{figure} .caption")
    assert page.text("[data-number=records] dd") == "22 of 22"
    assert page.text("[data-number=skipped] dd") == "1 of 21"
    undefined = page.ask(
        "[...document.querySelectorAll('.numbers dfn')].filter(e => !e.dataset.definition).length"
    )
    assert undefined == 0
    skip = page.wait("the skip", lambda: page.text("[data-ledger=skips] tbody tr"))
    assert "head.weight 3 inf" in skip
    assert "2^16 → 2^15" in skip
    page.wait("parameters", lambda: len(page.texts("[data-ledger=parameters] tbody tr")) == 3)
    assert "init" in page.wait("events", lambda: page.text("[data-ledger=events] tbody tr"))
    assert page.quarrels() == []


def test_a_run_is_followed_while_it_trains(page: Page) -> None:
    """New updates reach the chart, a new skip the table, and an end the status, without a reload."""
    run = PostedRun(page.server)
    run.updates(5)
    page.show(run)
    page.ask("window.notReloaded = true")
    run.updates(10)
    posted = time.monotonic()
    page.wait("more points", lambda: page.points() >= 15)
    assert time.monotonic() - posted < 2
    run.updates(skipped=True)
    page.wait("the skip's row", lambda: len(page.texts("[data-ledger=skips] tbody tr")) == 1)
    run.event("finish")
    page.wait("the end", lambda: "finished" in page.text(".run header"))
    assert page.ask("window.notReloaded")
    assert page.quarrels() == []


def test_a_zoom_holds_while_data_arrive_and_binds_all_charts(page: Page) -> None:
    """A drag zooms every chart and stands in the address; news do not undo it; a double click does."""
    run = PostedRun(page.server)
    run.updates(100)
    page.show(run)
    page.drag(-200, 100)
    page.wait("the zoom", lambda: "start=" in page.ask("location.hash"))
    page.wait("its data", lambda: page.points() < 100)
    zoomed = page.range()
    run.updates(50)
    page.wait("the news", lambda: page.text("[data-number=skipped] dd") == "0 of 150")
    time.sleep(0.6)
    assert page.range() == zoomed
    others = page.ask(
        "[...document.querySelectorAll('.js-plotly-plot')].map(e => e.layout.xaxis.range)"
    )
    assert len(others) >= 2
    assert all(each == zoomed for each in others)
    plot = page.chrome.find_element(By.CSS_SELECTOR, SCALE_PLOT)
    ActionChains(page.chrome).move_to_element(plot).double_click().perform()
    page.wait("the whole run", lambda: page.range() == [-0.5, 149.5])
    assert "start=" not in page.ask("location.hash")
    assert page.quarrels() == []


def test_a_drag_survives_the_news(page: Page) -> None:
    """Updates that arrive while the reader drags do not break the drag off."""
    run = PostedRun(page.server)
    run.updates(100)
    page.show(run)
    plot = page.chrome.find_element(By.CSS_SELECTOR, SCALE_PLOT)
    ActionChains(page.chrome).move_to_element_with_offset(
        plot, -200, 0
    ).click_and_hold().move_by_offset(50, 0).perform()
    run.updates(30)
    page.wait("the news", lambda: page.text("[data-number=skipped] dd") == "0 of 130")
    time.sleep(0.5)
    ActionChains(page.chrome).move_by_offset(100, 0).release().perform()
    page.wait("the zoom", lambda: "start=" in page.ask("location.hash"))


def test_the_address_holds_the_view(page: Page) -> None:
    """A link opens the same stretch on the same axis; back leads to where one was."""
    run = PostedRun(page.server)
    run.updates(50)
    page.show(run, "?start=10&stop=20")
    page.wait("the stretch", lambda: page.range() == [9.5, 19.5])
    page.click("[data-x=time]")
    page.wait("time", lambda: page.drawn("layout.xaxis.type") == "date")
    assert "x=time" in page.ask("location.hash")
    page.chrome.back()
    page.wait("the stretch again", lambda: page.range() == [9.5, 19.5])


def test_the_charts_can_be_zoomed_with_the_keyboard(page: Page) -> None:
    """The zoom is a button too: what a drag does, the keyboard can do."""
    run = PostedRun(page.server)
    run.updates(100)
    page.show(run)
    page.chrome.find_element(By.CSS_SELECTOR, "[aria-label='Zoom in']").send_keys(Keys.ENTER)
    page.wait("half the run", lambda: page.range() == [24.5, 74.5])
    page.chrome.find_element(By.CSS_SELECTOR, "[aria-label='Later']").send_keys(Keys.ENTER)
    page.wait("the part after it", lambda: page.range() == [49.5, 99.5])


def test_a_lost_server_is_said_and_found_again(own_page: Page) -> None:
    """While the server is away the page says for how long; once it is back, the page is up to date by itself."""
    page = own_page
    run = PostedRun(page.server)
    run.updates(5)
    page.show(run)
    page.wait("live", lambda: page.text("#connection") == "Live")
    page.server.kill()
    page.wait("the loss", lambda: "Lost the server" in page.text("#connection"))
    page.wait("its age", lambda: " s ago; retrying" in page.text("#connection"))
    assert page.points() == 5, "what was drawn stays"
    page.server.start()
    page.wait("the return", lambda: page.text("#connection") == "Live")
    run.updates(4)
    page.wait("the news", lambda: page.points() == 9)


def test_missing_data_is_said(page: Page) -> None:
    """What was lost, dropped, left out or may be lost, and the monitor's own errors, stand above the charts."""
    run = PostedRun(page.server)
    run.updates(5)
    run.lose(3)
    run.updates(5)
    run.event("dropped", count=7)
    run.event("thinned", count=120)
    run.event("spool", kept="memory", why="/home is on a network mount (nfs4)", window_ms=250)
    run.event("error", where="probe", type="RuntimeError", message="no <b>luck</b>")
    page.show(run)
    notices = page.wait(
        "notices", lambda: len(page.texts(".notices li")) == 5 and page.texts(".notices li")
    )
    assert "3 records of" in notices[0]
    assert "7 records dropped" in notices[1]
    assert "Samples of 120 updates left out" in notices[2]
    assert "pass through memory, because /home is on a network mount (nfs4); a killed" in notices[3]
    assert "may lose the last 250 ms." in notices[3]
    assert "failed 1 time" in notices[4]
    assert page.text("[data-number=records] .more") == "3 lost"
    assert "There is no record of 3 steps in between." in page.text("[data-figure=scale] .caption")


def test_a_chart_without_data_says_why(page: Page) -> None:
    """Before the first update, before the first sample, and in an empty stretch, words stand in a chart's place."""
    run = PostedRun(page.server)
    page.open(f"#{run.path}")
    page.wait("the reason", lambda: "No update yet" in page.text("[data-figure=scale] .empty"))
    run.updates(3, sampled=False)
    page.wait("the chart", page.points)
    page.wait(
        "no sample",
        lambda: "No gradient sampled yet" in page.text("[data-figure=underflow] .empty"),
    )
    page.open(f"#{run.path}?start=500&stop=600")
    page.wait(
        "no step", lambda: "No update in steps 500 – 599" in page.text("[data-figure=scale] .empty")
    )


def test_names_are_inert(page: Page) -> None:
    """Markup in the names of runs and parameters, and in what an error says, is shown as text and runs nothing."""
    evil = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>&amp;'
    run = PostedRun(page.server, evil, parameters=("a", evil))
    run.updates(5)
    run.updates(skipped=True)
    run.event("error", where=evil, type="E", message=evil)
    page.open()
    page.wait("the name", lambda: evil in page.texts("table.runs td:first-child a"))
    page.show(run)
    assert page.text("h1") == evil
    page.wait("the culprit", lambda: page.text("[data-ledger=skips] code") == evil)
    page.wait("the parameter", lambda: evil in page.texts("[data-ledger=parameters] code"))
    page.wait("the event", lambda: evil in page.text("[data-ledger=events] tbody"))
    assert page.ask("window.harmed") is None
    assert page.ask("document.querySelectorAll('main img, main script').length") == 0
    assert page.quarrels() == []


def test_the_theme_follows_the_system_and_the_reader(page: Page) -> None:
    """The system's theme is shown until the reader turns it; the choice outlives a reload, and charts follow it."""
    run = PostedRun(page.server)
    run.updates(5)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    page.show(run)
    assert page.ask("document.documentElement.dataset.theme") == "dark"
    before = page.drawn("data[0].line.color")
    page.click("#theme")
    page.wait("new colours", lambda: page.drawn("data[0].line.color") != before)
    page.chrome.refresh()
    page.wait("the chart", page.points)
    assert page.ask("document.documentElement.dataset.theme") == "light"


def test_a_definition_is_shown_on_focus(page: Page) -> None:
    """The definition of a number appears on reaching it with the keyboard, inside the window, and goes with Escape."""
    run = PostedRun(page.server)
    run.updates(5)
    page.show(run)
    page.chrome.execute_script("document.querySelector('[data-number=headroom] dfn').focus()")
    assert "65 504" in page.text("#tip")
    edges = page.ask(
        "(({left, right}) => [left, innerWidth - right])(document.getElementById('tip').getBoundingClientRect())"
    )
    assert min(edges) >= 0
    ActionChains(page.chrome).send_keys(Keys.ESCAPE).perform()
    assert page.text("#tip") == ""


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_sticks_out_sideways(page: Page, width: int) -> None:
    """At the width of a phone and of a desk, neither page scrolls sideways, whatever the names."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    run = PostedRun(page.server, "x" * 200, parameters=("layer." * 30, "y" * 200))
    run.updates(9)
    run.updates(skipped=True)
    page.open()
    page.wait("the list", lambda: page.texts("table.runs td:first-child a"))
    assert page.ask("document.documentElement.scrollWidth") <= width
    page.show(run)
    page.wait("tables", lambda: page.text("[data-ledger=parameters] tbody tr"))
    assert page.ask("document.documentElement.scrollWidth") <= width


def test_a_run_that_is_not_there_is_said_to_be(page: Page) -> None:
    """A link to a run that was deleted says so."""
    page.open("#/runs/01900000-0000-7000-8000-000000000000")
    page.wait("the words", lambda: "No such run" in page.text("h1"))
