"""The page under a proxy's path, and in a frame of another site: the same page, which asks for nothing beside it."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Frame

from ampmon_server import notebook
from nginx import Nginx
from posted import PostedRun
from reverse_proxy import ReverseProxy
from serving import Server
from web.reader import Reader


REMOVED, KEPT = "/user/me/proxy/8267", "/ampmon"
"""Paths that a proxy removes from a request, as Jupyter's does, or keeps, as in docs/embedding.md."""
SKIPPED = "[data-number=skipped] dd"


def test_the_page_works_under_a_path_that_a_proxy_removes(
    served: Server, new_reader: Callable[[ReverseProxy | Nginx], Reader]
) -> None:
    """Every request of the page stays below the path. `make test-campaigns` has nginx keep the path."""
    check_under_a_path(served, ReverseProxy(served, REMOVED), REMOVED, new_reader)


def check_under_a_path(
    server: Server,
    proxy: ReverseProxy | Nginx,
    path: str,
    new_reader: Callable[[ReverseProxy | Nginx], Reader],
) -> None:
    """Sign in, read, hear news and leave for a finding through a proxy; nothing is asked for elsewhere."""
    run = PostedRun(server, "below")
    run.updates(20)
    for _ in range(6):
        run.updates(skipped=True)
    with proxy:
        reader = new_reader(proxy)
        reader.page.context.clear_cookies()
        reader.page.goto(proxy.login_link())
        assert reader.page.url == f"{proxy.url}/"
        [cookie] = reader.page.context.cookies()
        assert cookie["path"] == path
        reader.page.get_by_role("link", name="below").click()
        reader.wait("the chart", reader.points)
        run.updates(4)
        reader.wait("the news", lambda: reader.text(SKIPPED) == "6 of 30")
        reader.wait("a finding", lambda: reader.page.locator(".finding").count())
        address = reader.ask("document.querySelector('.finding a').href")
        assert address.startswith(f"{proxy.url}/findings/")
        reader.page.goto(address)
        mark = reader.page.get_by_role("link", name="ampmon", exact=True)
        assert mark.evaluate("link => link.href") == f"{proxy.url}/"
        assert proxy.strays == []
        reader.page.goto("about:blank")  # before the proxy is gone


@pytest.fixture
def hub() -> Iterator[Callable[[str], str]]:
    """Shows an address in a frame, on a page of another site, whose address it gives."""
    shown: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(
                f"<link rel=icon href='data:,'><iframe src='{shown['it']}' width=1200 height=900></iframe>".encode()
            )

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()

    def show(address: str) -> str:
        shown["it"] = address
        return f"http://localhost:{server.server_port}/"

    yield show
    server.shutdown()
    server.server_close()
    thread.join()


def skipped(frame: Frame) -> str:
    """What the page in a frame says of a run's skips, once its first chart, which is looked at, is drawn."""
    drawn = frame.locator("[data-figure=scale] .main-svg").first
    frame.evaluate("document.querySelector('[data-figure=scale]')?.scrollIntoView()")
    return frame.locator(SKIPPED).first.inner_text() if drawn.count() else ""


def test_another_site_shows_a_live_run_in_a_frame(
    own_port: int,
    new_server: Callable[..., Server],
    new_reader: Callable[[Server], Reader],
    hub: Callable[[str], str],
) -> None:
    """A site that --frame-ancestors names shows a live run without a cookie; a used code makes the frame ask again."""
    hub_url = hub("about:blank").rstrip("/")
    server = new_server(port=own_port, options=["--frame-ancestors", hub_url])
    run = PostedRun(server)
    run.updates(5)
    reader = new_reader(server)
    reader.forgive(f"asked for {hub_url}/|401")
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


def test_nobody_frames_the_page_unasked(reader: Reader, hub: Callable[[str], str]) -> None:
    """Where no origin is named a browser shows nothing of the page in a frame, whoever is signed in."""
    address = hub(f"{reader.server.url}/")
    reader.forgive(f"asked for {address}|fram|chrome-error|401|ERR_CONNECTION")
    reader.page.goto(address)
    reader.wait("the refusal", lambda: reader.page.frames[1].url.startswith("chrome-error:"))
