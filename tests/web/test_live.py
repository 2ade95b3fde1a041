"""Live updates: one stream for all tabs, none for a hidden tab, and a sign-in that keeps the view."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Request

from browser import Lent
from posted import PostedRun
from reverse_proxy import ReverseProxy
from serving import Server
from web.reader import NOWHERE, Reader, light
from web.seat import Seat, seated


TABS = 3
"""One tab has the stream, one takes over, and one does neither."""
UPDATES = "td[data-name=Steps]"
STRETCH = "Showing steps 10 – 19"
SKIPPED = "[data-number=skipped] dd"
HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
def proxy(served: Server) -> Iterator[ReverseProxy]:
    with ReverseProxy(served, cache=True) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReverseProxy]:
    """The proxy of the page that this file's readers share. Its server judges no run, so runs stay unchanged."""
    folder = tmp_path_factory.mktemp("watched") / "ampmon"
    with (
        Server(folder, options=["--no-judging"]) as server,
        ReverseProxy(server, cache=True) as proxy,
    ):
        yield proxy


@pytest.fixture(scope="module")
def seat(kept_browser: Lent, watched: ReverseProxy) -> Iterator[Seat]:
    """As in conftest.py, but no charts are drawn and a proxy counts the page's calls."""
    with seated(kept_browser, watched, light) as seat:
        yield seat


def updates(page: Page, run: PostedRun) -> str:
    """The list's number of updates of a run, or "" before it has one."""
    row = page.locator("tr", has=page.locator(f"a[href*='{run.run_id}']"))
    return row.locator(UPDATES).text_content() or "" if row.count() else ""


def test_many_tabs_share_one_stream(
    new_reader: Callable[[ReverseProxy], Reader], proxy: ReverseProxy
) -> None:
    """All tabs get updates by one stream. When the tab that has it closes, another takes over."""
    reader, run = new_reader(proxy), PostedRun(proxy.server, "for all tabs")
    run.updates(3)
    light(reader.page)
    reader.open()
    reader.wait("the list", lambda: updates(reader.page, run) == "3")
    tabs = [light(reader.page.context.new_page()) for _ in range(TABS - 1)]
    for tab in tabs:
        tab.goto(f"{proxy.url}/")
    reader.wait("all tabs", lambda: all(updates(tab, run) == "3" for tab in tabs))
    reader.wait("one stream", lambda: proxy.streams == 1)
    run.updates(2)
    for tab in (reader.page, *tabs):
        reader.wait("the news", lambda tab=tab: updates(tab, run) == "5")
    reader.page.close()
    run.updates(2)
    for reader.page in tabs:
        reader.wait("the news after it", lambda: updates(reader.page, run) == "7")
    reader.wait("one stream again", lambda: proxy.streams == 1)
    assert proxy.streams_max <= 2  # a replaced stream ends as the next begins


def test_a_hidden_tab_asks_for_nothing(reader: Reader, watched: ReverseProxy) -> None:
    """A hidden tab has no stream and makes no call. Once visible again, it is up to date."""
    run = PostedRun(watched.server)
    run.updates(3)
    reader.arrive(run)
    reader.wait("the stream", lambda: watched.streams == 1)
    reader.page.evaluate(HIDE, True)
    reader.wait("its end", lambda: watched.streams == 0)
    reader.settle()
    before = watched.asked(run.path)
    with_list = light(reader.page.context.new_page())
    with_list.goto(f"{watched.url}/")
    run.updates(4)
    reader.wait("the news in a tab that is seen", lambda: updates(with_list, run) == "7")
    with_list.close()
    reader.wait("the end of its stream", lambda: watched.streams == 0)
    reader.settle()
    assert watched.asked(run.path) == before
    reader.page.evaluate(HIDE, False)
    reader.wait("what was missed", lambda: reader.text(SKIPPED) == "0 of 7")
    reader.wait("a stream", lambda: watched.streams == 1)
    reader.ask("delete document.hidden")


def test_a_sign_in_keeps_the_view(reader: Reader, watched: ReverseProxy) -> None:
    """A reader whose session has ended gets a sign-in box. It rejects a wrong code, and a link keeps the view."""
    reader.ignore_page_errors("401")
    run = PostedRun(watched.server)
    run.updates(30)
    reader.open(f"#{run.path}?start=10&stop=20")
    reader.wait("the stretch", lambda: reader.text(".where") == STRETCH)
    reader.ask("window.notReloaded = true")
    link = watched.login_link()
    reader.page.context.clear_cookies()
    run.updates(5)
    box = reader.page.get_by_role("dialog")
    box.wait_for()
    reader.wait("the end of the session", lambda: reader.text("#connection") == "Signed out")
    assert reader.text(".where") == STRETCH
    field = box.get_by_role("textbox")
    field.fill("not it")
    field.press("Enter")
    reader.wait("the refusal", lambda: "was used, has expired or is unknown" in box.inner_text())
    field.fill(link)
    box.get_by_role("button", name="Sign in").click()
    reader.wait("the news", lambda: reader.text(SKIPPED) == "0 of 35")
    reader.wait("the connection", lambda: reader.text("#connection") == "Live")
    reader.wait("the page without the box", lambda: box.count() == 0)
    assert reader.text(".where") == STRETCH
    assert reader.ask("window.notReloaded")


def test_an_answer_that_nothing_has_changed_ends(reader: Reader, watched: ReverseProxy) -> None:
    """A call answered by 304 ends for the browser too."""
    run = PostedRun(watched.server)
    run.updates(3)
    ended: list[Request] = []

    def note(request: Request) -> None:
        ended.append(request)

    reader.page.on("requestfinished", note)
    with reader.page.expect_response(lambda response: response.status == 304) as unchanged:
        reader.arrive(run)
        reader.open(NOWHERE)
        reader.arrive(run)
    reader.wait("its end", lambda: unchanged.value.request in ended)


def test_after_a_sleep_the_page_makes_sure(reader: Reader, watched: ReverseProxy) -> None:
    """After the clock jumps, the stream is reopened and all calls are repeated. Unchanged answers are 304."""
    run = PostedRun(watched.server)
    run.updates(3)
    run.event("finish")
    reader.arrive(run)
    reader.wait("the stream", lambda: watched.streams == 1)
    reader.settle()
    before = len(watched.requests)
    known = {path for _, path, _ in watched.requests}
    reader.ask("(now => { Date.now = () => now() + 3_600_000; })(Date.now.bind(Date))")
    reader.wait("more than the stream", lambda: len(watched.requests) > before + 3)
    reader.wait("it", lambda: any("/live" in path for _, path, _ in watched.requests[before:]))
    reader.settle()
    again = [(path, status) for _, path, status in watched.requests[before:] if path in known]
    streams = [path for path, _ in again if "/live" in path]
    assert len(streams) == 1
    assert len(again) > 2
    assert {status for path, status in again if path not in streams} == {304}, again
    reader.wait("one stream", lambda: watched.streams == 1)
    reader.load()  # restores the clock
