"""A test's reader of the page in a real browser: looks, acts, and records what must never happen."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal
from weakref import WeakKeyDictionary

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Route,
    WebError,
    expect,
)

from posted import PostedRun
from serving import Server
from waiting import DEADLINE_S


expect.set_options(timeout=DEADLINE_S * 1000)
POLL_MS = (20, 160)
"""Milliseconds between polls of the page, first and longest. Each poll costs both processes a little."""
DESK = (1440, 500)
"""Width and height in pixels. Tests rarely need more height, and each chart on screen is redrawn for every update."""


_GO = """hash => new Promise((done) => {
    if (location.hash === hash) return done();
    addEventListener("hashchange", () => done(), {once: true});
    location.hash = hash;
})"""
"""Resolves once the page, whose listener is older, has handled the new address."""
_IDLE = """async () => {
    for (let task = 0; task < 3; task++) {
        await new Promise(setTimeout);
        await new Promise((done) => requestIdleCallback(done));
    }
}"""
"""Resolves after the page has been idle three times, each after the tasks queued before."""
_TEXTS = """selector => [...document.querySelectorAll(selector)].map(
    one => one.checkVisibility() ? one.innerText : '')"""
"""Takes half as long as a Playwright locator, and tests call it very often."""
NOWHERE = "#/?project=nobody-has-this"
"""An almost empty view, opened between two others."""


_FREE: WeakKeyDictionary[Browser, list[BrowserContext]] = WeakKeyDictionary()
"""Contexts that readers have left, by browser. A new context starts a process and compiles every script again."""


def enter(browser: Browser, server: Server) -> Page:
    """Open a page that is signed in at ``server`` by a one-time link, in a context without other readers."""
    free = _FREE.setdefault(browser, [])
    context = free.pop() if free else _new_context(browser)
    context.request.get(server.login_link(), max_redirects=0)
    page = context.new_page()
    page.bring_to_front()
    return page


def light(page: Page) -> Page:
    """Keep the page from loading the chart library, which each origin compiles again. Most tests need no chart."""
    page.add_init_script("Object.defineProperty(HTMLScriptElement.prototype, 'src', {set() {}})")
    return page


def _new_context(browser: Browser) -> BrowserContext:
    width, height = DESK
    context = browser.new_context(viewport={"width": width, "height": height})
    context.set_default_timeout(DEADLINE_S * 1000)
    context.new_page()  # never closed: it keeps the process with the compiled scripts
    return context


def leave(context: BrowserContext, *origins: str) -> None:
    """Close a context's pages and clear their state, so that the next reader finds it as new."""
    keeper, *pages = context.pages
    for page in pages:
        page.close()
    context.unroute_all()
    context.clear_cookies()
    context.clear_permissions()
    developer = context.new_cdp_session(keeper)
    for origin in origins:
        developer.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    developer.detach()
    assert context.browser is not None
    _FREE[context.browser].append(context)


class Reader:
    """A reader at a page of ``server``.

    The attribute `page` is Playwright's own. The methods are what tests do often.
    """

    def __init__(self, page: Page, server: Server) -> None:
        self.server = server
        self.page = page
        self._quarrels: list[str] = []
        self._forgiven: list[str] = []
        self._left = False
        self._made = 0
        self._underway: set[Request] = set()
        self._first = page
        page.on("request", self._note_call)
        page.on("requestfinished", self._forget)
        page.on("requestfailed", self._forget)
        page.context.on("request", self._note_request)
        page.context.on("console", self._note_words)
        page.context.on("weberror", self._note_error)

    def open(self, hash: str = "#/") -> None:
        """Go to an address of the page. Load the page if necessary, else pass `NOWHERE`, which resets the view."""
        if self.page.url.partition("#")[0] != f"{self.server.url}/":
            self.load(hash)
            return
        self.page.evaluate(_GO, NOWHERE)
        self.page.evaluate(_GO, hash)

    def load(self, hash: str = "#/") -> None:
        """Load the page anew at an address."""
        if self.page.url.startswith(self.server.url):
            self.page.goto("about:blank")
        self.page.goto(f"{self.server.url}/{hash}")

    def arrive(self, run: PostedRun) -> None:
        """Open a run and wait for its name, which comes before its charts."""
        self.open(f"#{run.path}")
        self.wait("the name", lambda: self.text("h1") not in {"", "…"})

    def show(self, run: PostedRun, query: str = "") -> None:
        """Open a run and wait for its name and its first chart, which come in separate answers."""
        self.open(f"#{run.path}{query}")
        self.wait("the chart of the scale", self.scrolled_to)
        self.wait("the name", lambda: self.text("h1") != "…")

    def unfold_findings(self) -> None:
        """Open the findings, and click again if the page moved under the pointer before it let go."""
        findings = self.page.locator(".findings")

        def is_open() -> bool:
            if not findings.evaluate("details => details.open"):
                self.page.click(".answer")
            return bool(findings.evaluate("details => details.open"))

        self.wait("the findings", is_open)

    def figure(self, name: str) -> Locator:
        return self.page.locator(f"[data-figure={name}]")

    def caption(self, name: str) -> str:
        """A chart's caption. In the stack it begins with the (i). Scrolls to the chart: one off screen is not drawn."""
        chart = self.figure(name)
        chart.scroll_into_view_if_needed()
        said = chart.locator(".caption").text_content() or ""
        return said.replace("\u202f", " ")

    def tab(self, name: str) -> None:
        """Open a tab of a run's page."""
        self.page.locator(f"#tab-{name}").click()
        expect(self.page.locator(f"#in-{name}")).to_be_visible()

    def plot(self, name: str, js: str) -> Any:
        """The value of ``js`` with a chart's element as ``plot``. None before the chart is drawn: scrolls to it."""
        return self.page.evaluate(
            f"""name => {{
                const chart = document.querySelector(`[data-figure=${{name}}]`);
                const plot = chart?.querySelector(".plot.js-plotly-plot");
                if (!plot) chart?.scrollIntoView({{ block: "nearest" }});
                return plot && ({js});
            }}""",
            name,
        )

    def points(self, name: str = "scale") -> int:
        """The number of points of a chart's first line other than the headroom; 0 before it is drawn."""
        line = "plot._fullData?.find(each => each.name !== 'headroom')"
        return int(self.plot(name, f"{line}?._length") or 0)

    def newest(self) -> int:
        """The newest step on the chart of the scale; 0 before it is drawn."""
        line = "plot._fullData?.find(each => each.name === 'loss scale')"
        return int(self.plot("scale", f"{line}?.x.at(-1)") or 0)

    def scrolled_to(self, name: str = "scale") -> int:
        """Scroll to a chart and return its `points`. Content that came above it may have moved it off screen."""
        panel = f"document.querySelector('[data-figure={name}]')"
        self.ask(f"{panel}?.scrollIntoView({{block: 'nearest'}})")
        return self.points(name)

    def range(self, name: str = "scale") -> Any:
        """The range of a chart's horizontal axis."""
        return self.plot(name, "plot.layout.xaxis.range")

    def ask(self, js: str) -> Any:
        return self.page.evaluate(js)

    def text(self, selector: str) -> str:
        """The visible text of the first matching element, or "" without one."""
        return (self.texts(selector) or [""])[0]

    def texts(self, selector: str) -> list[str]:
        """The text of each matching element, "" for a hidden one."""
        texts = self.page.evaluate(_TEXTS, selector)
        return [text.replace("\u202f", " ") for text in texts]  # numbers have thin spaces

    def size(self, width: int, height: int = DESK[1]) -> None:
        self.page.set_viewport_size({"width": width, "height": height})

    def theme(self, name: Literal["light", "dark"]) -> None:
        """Set the color scheme of the reader's system."""
        self.page.emulate_media(color_scheme=name)

    def drag(self, start: int, end: int, name: str = "scale", *, release: bool = True) -> None:
        """Drag across a chart. ``start`` and ``end`` are in pixels from its middle."""
        box = self.figure(name).locator(".plot").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x + start, y)
        self.page.mouse.down()
        self.page.mouse.move(x + end, y, steps=4)
        if release:
            self.page.mouse.up()

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """Poll ``condition`` until it is true and return its value. ``what`` names it in the failure."""
        end = time.monotonic() + DEADLINE_S
        poll_ms, longest_ms = POLL_MS
        while time.monotonic() < end:
            if value := condition():
                return value
            self.page.wait_for_timeout(poll_ms)
            poll_ms = min(2 * poll_ms, longest_ms)
        raise AssertionError(f"waited in vain for {what}; the page says:\n{self.text('body')}")

    def catch_up(self) -> None:
        """Wait until the page has done its pending work, such as handling answers and drawing charts."""
        self.page.evaluate(_IDLE)

    def settle(self) -> None:
        """Wait until the page has no pending call, as the browser sees them, and nothing else to do."""

        def rests() -> bool:
            before = self._made
            self.catch_up()
            return not self._underway and self._made == before

        self.wait("a page at rest", rests)

    def hold(self, calls: str | re.Pattern[str]) -> list[Route]:
        """Hold back requests that match ``calls``. The returned list grows as they are made."""
        held: list[Route] = []

        def keep(route: Route) -> None:
            held.append(route)

        self.page.route(calls, keep)
        return held

    def let_go(self, held: Iterable[Route]) -> None:
        """Release requests that were held back, and wait until the page has handled the answers."""
        for route in held:
            with self.page.expect_response(route.request.url) as answer:
                route.continue_()
            answer.value.finished()
        self.catch_up()

    def ignore_page_errors(self, pattern: str) -> None:
        """Ignore page errors that match the pattern, for a test that breaks something."""
        self._forgiven.append(pattern)

    def close(self) -> None:
        """Leave the page. A server that ends first causes one more quarrel. A second call does nothing."""
        if self._left:
            return
        self._left = True
        self.rise()
        leave(self.page.context, self.server.url)

    def rise(self) -> None:
        """Stop listening to a page that another reader will use."""
        self._first.remove_listener("request", self._note_call)
        self._first.remove_listener("requestfinished", self._forget)
        self._first.remove_listener("requestfailed", self._forget)
        self.page.context.remove_listener("request", self._note_request)
        self.page.context.remove_listener("console", self._note_words)
        self.page.context.remove_listener("weberror", self._note_error)

    def page_errors(self) -> list[str]:
        """Console errors including policy violations, uncaught errors, and requests to other servers."""
        return [
            each
            for each in self._quarrels
            if not any(re.search(pattern, each) for pattern in self._forgiven)
        ]

    def _note_request(self, request: Request) -> None:
        own = request.url.startswith((self.server.url + "/", "data:", "blob:", "about:"))
        self._note(not own, f"asked for {request.url}")

    def _note_call(self, request: Request) -> None:
        if request.is_navigation_request():
            self._underway.clear()  # no end of these calls may be reported
        if "/api/v1/live" not in request.url:  # it never ends
            self._made += 1
            self._underway.add(request)

    def _forget(self, request: Request) -> None:
        self._underway.discard(request)

    def _note_words(self, said: ConsoleMessage) -> None:
        self._note(said.type == "error", said.text)

    def _note_error(self, thrown: WebError) -> None:
        self._note(True, str(thrown.error))

    def _note(self, quarrel: bool, words: str) -> None:
        if quarrel:
            self._quarrels.append(words)
