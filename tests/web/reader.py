"""A reader of the page in a real browser: what they see, what they do, and what must never happen meanwhile."""

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
"""How long to wait before asking the page again, at first and in the end: to ask costs both processes a little."""
DESK = (1440, 500)
"""Of no more height than most tests need: each chart on the screen is drawn again for all news."""


_GO = """hash => new Promise((done) => {
    if (location.hash === hash) return done();
    addEventListener("hashchange", () => done(), {once: true});
    location.hash = hash;
})"""
"""Resolves once the page, which began to listen before, has taken note."""
_IDLE = """async () => {
    for (let task = 0; task < 3; task++) {
        await new Promise(setTimeout);
        await new Promise((done) => requestIdleCallback(done));
    }
}"""
"""Resolves once the page has had nothing to do three times, each after the tasks that were waiting then."""
_TEXTS = """selector => [...document.querySelectorAll(selector)].map(
    one => one.checkVisibility() ? one.innerText : '')"""
"""Half of what the same costs with one of Playwright's locators, and tests ask for it again and again."""
NOWHERE = "#/?project=nobody-has-this"
"""An address with hardly anything on it, where a page is between two others."""


_FREE: WeakKeyDictionary[Browser, list[BrowserContext]] = WeakKeyDictionary()
"""The contexts of each browser that a reader has left. A new one starts a process and compiles every script anew."""


def enter(browser: Browser, server: Server) -> Page:
    """A page that is signed in at ``server`` by a one-time link, in a context that no other page is in."""
    free = _FREE.setdefault(browser, [])
    context = free.pop() if free else _new_context(browser)
    context.request.get(server.login_link(), max_redirects=0)
    page = context.new_page()
    page.bring_to_front()
    return page


def light(page: Page) -> Page:
    """A page without the library that draws, which each origin has compiled anew: most facts need no chart."""
    page.add_init_script("Object.defineProperty(HTMLScriptElement.prototype, 'src', {set() {}})")
    return page


def _new_context(browser: Browser) -> BrowserContext:
    width, height = DESK
    context = browser.new_context(viewport={"width": width, "height": height})
    context.set_default_timeout(DEADLINE_S * 1000)
    context.new_page()  # never closed: it keeps the process with the compiled scripts
    return context


def leave(context: BrowserContext, *origins: str) -> None:
    """Close a context's pages and forget their state, so that the next reader finds a new context's."""
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
    """Someone before a page of ``server``.

    Everything is there for the asking on ``page``, Playwright's own; here is what tests say again and again.
    """

    def __init__(self, page: Page, server: Server) -> None:
        self.server = server
        self.page = page
        self._quarrels: list[str] = []
        self._forgiven: list[str] = []
        self._left = False
        page.context.on("request", self._note_request)
        page.context.on("console", self._note_words)
        page.context.on("weberror", self._note_error)

    def open(self, hash: str = "#/") -> None:
        """Go to an address of the page, which is loaded if it is not there, and forgets where it was."""
        if self.page.url.partition("#")[0] != f"{self.server.url}/":
            self.load(hash)
            return
        self.page.evaluate(_GO, NOWHERE)
        self.page.evaluate(_GO, hash)

    def load(self, hash: str = "#/") -> None:
        """Go to an address of the page, which is loaded anew."""
        if self.page.url.startswith(self.server.url):
            self.page.goto("about:blank")
        self.page.goto(f"{self.server.url}/{hash}")

    def arrive(self, run: PostedRun) -> None:
        """Open a run and wait for its name, which is there before its charts are."""
        self.open(f"#{run.path}")
        self.wait("the name", lambda: self.text("h1") not in {"", "…"})

    def show(self, run: PostedRun, query: str = "") -> None:
        """Open a run and wait for its name and its first chart, which come with answers of their own."""
        self.open(f"#{run.path}{query}")
        self.wait("the chart of the scale", self.scrolled_to)
        self.wait("the name", lambda: self.text("h1") != "…")

    def figure(self, name: str) -> Locator:
        """The panel of a chart."""
        return self.page.locator(f"[data-figure={name}]")

    def caption(self, name: str) -> str:
        """What a chart says of itself, which in the stack opens with its (i)."""
        said = self.figure(name).locator(".caption").text_content() or ""
        return said.replace("\u202f", " ")

    def tab(self, name: str) -> None:
        """Turn to a tab of a run's page."""
        self.page.locator(f"#tab-{name}").click()
        expect(self.page.locator(f"#in-{name}")).to_be_visible()

    def plot(self, name: str, js: str) -> Any:
        """What ``js`` says of a chart's element, ``plot``; None before it is drawn."""
        found = f"document.querySelector('[data-figure={name}] .plot.js-plotly-plot')"
        return self.ask(f"(plot => plot && ({js}))({found})")

    def points(self, name: str = "scale") -> int:
        """The points of a chart's first line, bands left out; 0 before it is drawn."""
        line = "plot._fullData?.find(each => each.name !== 'headroom')"
        return int(self.plot(name, f"{line}?._length") or 0)

    def newest(self) -> int:
        """The newest step on the chart of the scale; 0 before it is drawn."""
        line = "plot._fullData?.find(each => each.name === 'loss scale')"
        return int(self.plot("scale", f"{line}?.x.at(-1)") or 0)

    def scrolled_to(self, name: str = "scale") -> int:
        """As `points`, of a chart that is brought on the screen: what came above it may have moved it off."""
        panel = f"document.querySelector('[data-figure={name}]')"
        self.ask(f"{panel}?.scrollIntoView({{block: 'nearest'}})")
        return self.points(name)

    def range(self, name: str = "scale") -> Any:
        """The stretch of the horizontal axis that a chart shows."""
        return self.plot(name, "plot.layout.xaxis.range")

    def ask(self, js: str) -> Any:
        """What an expression gives in the page."""
        return self.page.evaluate(js)

    def text(self, selector: str) -> str:
        """The text of the first element that is there, as it is seen, or "" where none is."""
        return (self.texts(selector) or [""])[0]

    def texts(self, selector: str) -> list[str]:
        """The text of each element that is there, "" where it is not seen."""
        texts = self.page.evaluate(_TEXTS, selector)
        return [text.replace("\u202f", " ") for text in texts]  # numbers are told with thin spaces

    def size(self, width: int, height: int = DESK[1]) -> None:
        self.page.set_viewport_size({"width": width, "height": height})

    def theme(self, name: Literal["light", "dark"]) -> None:
        """What the reader's system asks for."""
        self.page.emulate_media(color_scheme=name)

    def drag(self, start: int, end: int, name: str = "scale", *, release: bool = True) -> None:
        """Drag across a chart, from and to pixels off its middle."""
        box = self.figure(name).locator(".plot").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x + start, y)
        self.page.mouse.down()
        self.page.mouse.move(x + end, y, steps=4)
        if release:
            self.page.mouse.up()

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        """What ``condition`` gives once it is true; ``what`` names it where it never is."""
        end = time.monotonic() + DEADLINE_S
        poll_ms, longest_ms = POLL_MS
        while time.monotonic() < end:
            if value := condition():
                return value
            self.page.wait_for_timeout(poll_ms)
            poll_ms = min(2 * poll_ms, longest_ms)
        raise AssertionError(f"waited in vain for {what}; the page says:\n{self.text('body')}")

    def catch_up(self) -> None:
        """Return once the page has done what it had to do when this was called: handled answers, drawn charts."""
        self.page.evaluate(_IDLE)

    def hold(self, calls: str | re.Pattern[str]) -> list[Route]:
        """Hold back ``calls``, and list them as they are made."""
        held: list[Route] = []

        def keep(route: Route) -> None:
            held.append(route)

        self.page.route(calls, keep)
        return held

    def let_go(self, held: Iterable[Route]) -> None:
        """Let through calls that were held back, and return once the page has handled the answers."""
        for route in held:
            with self.page.expect_response(route.request.url) as answer:
                route.continue_()
            answer.value.finished()
        self.catch_up()

    def forgive(self, pattern: str) -> None:
        """Let pass what this regular expression finds among the quarrels: a test that breaks something has some."""
        self._forgiven.append(pattern)

    def close(self) -> None:
        """Leave: a server that ends before would be one more quarrel. Twice does no harm."""
        if self._left:
            return
        self._left = True
        self.rise()
        leave(self.page.context, self.server.url)

    def rise(self) -> None:
        """Listen no more to a page that somebody else will read."""
        self.page.context.remove_listener("request", self._note_request)
        self.page.context.remove_listener("console", self._note_words)
        self.page.context.remove_listener("weberror", self._note_error)

    def quarrels(self) -> list[str]:
        """Errors in the console, violations of the policy among them, and requests to anywhere but the server."""
        return [
            each
            for each in self._quarrels
            if not any(re.search(pattern, each) for pattern in self._forgiven)
        ]

    def _note_request(self, request: Request) -> None:
        own = request.url.startswith((self.server.url + "/", "data:", "blob:", "about:"))
        self._note(not own, f"asked for {request.url}")

    def _note_words(self, said: ConsoleMessage) -> None:
        self._note(said.type == "error", said.text)

    def _note_error(self, thrown: WebError) -> None:
        self._note(True, str(thrown.error))

    def _note(self, quarrel: bool, words: str) -> None:
        if quarrel:
            self._quarrels.append(words)
