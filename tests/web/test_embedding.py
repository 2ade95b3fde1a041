"""The page under a proxy's path, and in a frame of another site."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from http_server import HttpServer, QuietHandler
from nginx import Nginx
from posted import PostedRun
from reverse_proxy import ReverseProxy
from serving import Server
from web.reader import Reader, light


REMOVED, KEPT = "/user/me/proxy/8267", "/ampmon"
"""Paths that a proxy removes from a request, as Jupyter's does, or keeps, as in docs/embedding.md."""
SKIPPED = "[data-number=skipped] dd"


def test_the_page_works_under_a_path_that_a_proxy_removes(
    served: Server, new_reader: Callable[[ReverseProxy | Nginx], Reader]
) -> None:
    """The page's requests stay below a path that a proxy removes. `make test-campaigns` has nginx, which keeps it."""
    check_under_a_path(served, ReverseProxy(served, REMOVED), REMOVED, new_reader, drawn=False)


def check_under_a_path(
    server: Server,
    proxy: ReverseProxy | Nginx,
    path: str,
    new_reader: Callable[[ReverseProxy | Nginx], Reader],
    *,
    drawn: bool,
) -> None:
    """Sign in, read, follow updates and open a finding through a proxy. No request may go elsewhere."""
    run = PostedRun(server, "below")
    run.updates(20)
    for _ in range(6):
        run.updates(skipped=True)
    with proxy:
        reader = new_reader(proxy)
        if not drawn:
            light(reader.page)
        reader.page.context.clear_cookies()
        reader.page.goto(proxy.login_link())
        assert reader.page.url == f"{proxy.url}/"
        [cookie] = reader.page.context.cookies()
        assert cookie["path"] == path
        reader.page.locator(f"a[href='#{run.path}']").click()
        reader.wait("the run", lambda: reader.text(SKIPPED) == "6 of 26")
        reader.wait("the chart", lambda: reader.points() or not drawn)
        run.updates(4)
        reader.wait("the news", lambda: reader.text(SKIPPED) == "6 of 30")
        reader.wait("a finding", lambda: reader.page.locator(".finding").count())
        address = reader.ask("document.querySelector('.finding a').href")
        assert address.startswith(f"{proxy.url}/findings/")
        reader.page.goto(address)
        mark = reader.page.get_by_role("link", name="ampmon", exact=True)
        assert mark.evaluate("link => link.href") == f"{proxy.url}/"
        assert proxy.strays == []
        reader.page.goto("about:blank")  # leave before the proxy is gone


@pytest.fixture
def hub() -> Iterator[Callable[[str], str]]:
    """A function that shows an address in a frame on another site's page, and returns that page's address."""
    shown: dict[str, str] = {}

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(
                f"<link rel=icon href='data:,'><iframe src='{shown['it']}' width=1200 height=900></iframe>".encode()
            )

    with HttpServer(Handler) as server:

        def show(address: str) -> str:
            shown["it"] = address
            return f"http://localhost:{server.server_port}/"

        yield show


def test_nobody_frames_the_page_unasked(reader: Reader, hub: Callable[[str], str]) -> None:
    """If no origin is allowed, a browser shows nothing of the page in a frame, even to a signed-in reader."""
    address = hub(f"{reader.server.url}/")
    reader.ignore_page_errors(f"asked for {address}|fram|chrome-error|401|ERR_CONNECTION")
    reader.page.goto(address)
    reader.wait("the refusal", lambda: reader.page.frames[1].url.startswith("chrome-error:"))
