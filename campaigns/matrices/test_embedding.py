"""The page under a path prefix, in another site's frame and in a crashing tab; the documentation."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Error, Frame, expect

from ampmon_server import notebook
from browser import chromium
from nginx import Nginx
from posted import PostedRun
from reverse_proxy import ReverseProxy
from serving import Server
from tools import NGINX
from web import test_documentation, test_embedding
from web.axe import violations
from web.reader import Reader, enter, light
from web.test_embedding import SKIPPED, hub
from web.test_live import proxy, updates


__all__ = ["hub", "proxy"]  # fixtures


@NGINX.needed
def test_the_page_works_under_a_path_that_nginx_keeps(
    new_server: Callable[..., Server],
    new_reader: Callable[..., Reader],
    tmp_path: Path,
) -> None:
    """Every request of the page stays under the path."""
    server = new_server(options=["--base-path", test_embedding.KEPT])
    proxy = Nginx.under_a_path(server, tmp_path)
    test_embedding.check_under_a_path(server, proxy, test_embedding.KEPT, new_reader, drawn=True)


def test_the_page_draws_under_a_path_that_a_proxy_removes(
    served: Server, new_reader: Callable[..., Reader]
) -> None:
    """Every request of the page stays under the path, including those for charts."""
    proxy = ReverseProxy(served, test_embedding.REMOVED)
    path = test_embedding.REMOVED
    test_embedding.check_under_a_path(served, proxy, path, new_reader, drawn=True)


def skipped(frame: Frame) -> str:
    """The page's text about a run's skips in a frame, once its first chart is drawn; empty until then."""
    drawn = frame.locator("[data-figure=scale] .main-svg").first
    frame.evaluate("document.querySelector('[data-figure=scale]')?.scrollIntoView()")
    return frame.locator(SKIPPED).first.inner_text() if drawn.count() else ""


def test_another_site_shows_a_live_run_in_a_frame(
    own_port: int,
    new_server: Callable[..., Server],
    new_reader: Callable[[Server], Reader],
    hub: Callable[[str], str],
) -> None:
    """A site in --frame-ancestors shows a live run without a cookie; with a used code the frame asks to sign in."""
    hub_url = hub("about:blank").rstrip("/")
    server = new_server(port=own_port, options=["--frame-ancestors", hub_url])
    run = PostedRun(server)
    run.updates(5)
    reader = new_reader(server)
    reader.size(1440, 1000)  # the frame and its dialog are on the screen
    reader.ignore_page_errors(f"asked for {hub_url}/|401")
    reader.page.context.clear_cookies()
    cell = notebook.page(
        str(run.run_id), url=server.url, token_file=server.token_file
    )._repr_html_()
    found = re.search('src="([^"]+)"', cell)
    assert found is not None
    reader.page.goto(hub(f"{html.unescape(found[1])}&x=time"))
    frame = reader.page.frames[1]
    reader.wait("the chart", lambda: skipped(frame) == "0 of 5")
    assert frame.evaluate("location.hash") == f"#{run.path}?x=time"
    assert reader.ask("document.activeElement.tagName") == "BODY"  # the frame takes no focus
    assert reader.page.context.cookies() == []
    run.updates(3)
    reader.wait("the news", lambda: skipped(frame) == "0 of 8")
    frame.get_by_role("link", name="ampmon", exact=True).click()
    reader.wait("the list", lambda: frame.locator("table.runs").is_visible())

    reader.page.goto(hub(f"{server.url}/#{run.path}?code=used"))
    frame = reader.page.frames[1]
    box = frame.get_by_role("dialog")
    box.get_by_role("textbox").fill(server.login_link())
    box.get_by_role("button", name="Sign in").click()
    reader.wait("the chart", lambda: skipped(frame) == "0 of 8")
    assert reader.page.context.cookies() == []


@pytest.fixture
def crashing(proxy: ReverseProxy) -> Iterator[Reader]:
    """A reader whose tabs each have their own process, so that one can crash."""
    with chromium("--renderer-process-limit=9") as browser:
        reader = Reader(light(enter(browser, proxy)), proxy)
        yield reader
        reader.close()
    assert reader.page_errors() == []


def test_a_tab_that_crashes_hands_over(crashing: Reader, proxy: ReverseProxy) -> None:
    """When the tab that holds the stream crashes, another tab opens one and continues."""
    reader, run = crashing, PostedRun(proxy.server, "outlives a tab")
    run.updates(3)
    first = reader.page
    reader.open()
    reader.wait("the stream", lambda: proxy.streams == 1)
    reader.page = light(reader.page.context.new_page())
    reader.open()
    reader.wait("the list", lambda: updates(reader.page, run) == "3")
    assert proxy.streams == 1
    with first.expect_event("crash"), suppress(Error):
        first.goto("chrome://crash")
    run.updates(2)
    reader.wait("the news", lambda: updates(reader.page, run) == "5")
    reader.wait("its stream", lambda: proxy.streams == 1)
    assert reader.text("#connection") == "Live"


@pytest.mark.parametrize("name", ["gallery", "python", "simulator", "findings/index"])
def test_a_page_of_the_documentation_keeps_the_rules_of_axe(reader: Reader, name: str) -> None:
    """A page is small, has no axe violation, and fits its screen's width."""
    reader.theme("dark" if name == "python" else "light")
    reader.size(1440 if name == "findings/index" else 390)
    reader.load(f"docs/{name}.html")
    test_documentation.check_page(reader)


def test_a_report_of_the_gallery_opens_from_the_server(reader: Reader) -> None:
    """The gallery links to a report, which draws with the page's Plotly under the server's content policy."""
    reader.theme("dark")
    reader.load("docs/gallery.html")
    reader.page.get_by_role("link", name="Open the report").last.click()
    expect(reader.page.locator("[data-figure=norm] .plot-container")).to_be_visible()
    assert violations(reader.page) == []
