"""A page that many readers use in turn, each without traces of the one before.

Loading the page for each reader would cost more than most tests do, because of the chart library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Error, Page

from browser import Lent
from serving import Server
from web.reader import DESK, NOWHERE, Reader, enter, leave


_NAMES = """
    // The library that draws comes by itself after a while, with names of its own.
    Object.getOwnPropertyNames(window)
        .filter((name) => !/plotly|^(PolyBool|moduleName|v?sprintf|__TEXT_CACHE|__TYPEDARRAY_POOL)$/i.test(name))"""
_TIDY = f"""known => {{
    document.activeElement?.blur();
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
    document.querySelector(".actions:not([hidden]) button:last-of-type")?.click();  // clears the selected runs
    for (const name of {_NAMES}) if (known && !known.includes(name)) delete window[name];
}}"""
_FOLLOWS_SYSTEM = """() => localStorage.length > 0 || document.documentElement.dataset.theme
    === (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")"""
_STATE = f"""() => ({{
    address: location.hash,
    theme: document.documentElement.dataset.theme,
    storage: [...Object.keys(localStorage), ...Object.keys(sessionStorage)],
    hidden: document.hidden || Object.hasOwn(document, "hidden"),
    window: {_NAMES},
    clock: /native code/.test(Date.now),
    body: [...document.body.children].filter((one) => one.checkVisibility() && !/plotly/.test(one.id + one.className))
        .map((one) => `${{one.tagName}} ${{one.className}} ${{one.open ?? ""}}`),
    words: document.querySelector(".toast")?.textContent,
    bar: document.querySelector("header.bar").outerHTML,
    selected: document.querySelector(".actions:not([hidden])")?.textContent,
    style: document.body.getAttribute("style"),
}})"""


class Seat:
    """A page of ``server``. Changes that a test leaves are undone here or reported.

    ``prepare`` gets the page before it is loaded.
    """

    def __init__(self, server: Server, prepare: Callable[[Page], Page]) -> None:
        self.server = server
        self._prepare = prepare
        self._page: Page | None = None
        self._clean: dict[str, Any] = {}

    def take(self, browser: Browser) -> Reader:
        """A reader at the page, which shows an almost empty view."""
        if self._page is None:
            self._page = self._prepare(enter(browser, self.server))
            reader = Reader(self._page, self.server)
            reader.open(NOWHERE)
            self._clean = self._state(reader)
            reader.rise()
        self._page.bring_to_front()  # the browser draws no frames of a page in the background
        return Reader(self._page, self.server)

    def leave(self, reader: Reader) -> list[str]:
        """Return what the reader left behind. If there is anything, the next reader gets another page."""
        try:
            left = self._tidied(reader)
        except (Error, AssertionError) as error:
            left = [f"a page that does not answer: {error}"]
            reader.page.context.close()
            self._page = None
        reader.rise()
        if left:
            self.close()
        return left

    def close(self) -> None:
        """Close the page and leave its context, with the compiled scripts, to later readers."""
        if self._page is not None:
            leave(self._page.context, self.server.url)
        self._page = None

    def _tidied(self, reader: Reader) -> list[str]:
        page = reader.page
        page.unroute_all()
        page.context.unroute_all()
        page.context.clear_permissions()
        page.mouse.move(0, 0)
        reader.open(NOWHERE)  # first, or charts would be redrawn for the new size or theme
        reader.size(*DESK)
        page.emulate_media(color_scheme="light")
        page.evaluate(_TIDY, self._clean["window"])
        reader.settle()  # a late refusal would be the next reader's
        state = self._state(reader)
        return [
            f"{name}: {state[name]!r}, not {was!r}"
            for name, was in self._clean.items()
            if state[name] != was
        ]

    def _state(self, reader: Reader) -> dict[str, Any]:
        """The state of the page once it is at rest and its toast is gone."""
        reader.wait("nothing", lambda: "No run" in reader.text("main"))
        reader.wait("the connection", lambda: reader.text("#connection") == "Live")
        reader.wait("who reads", lambda: reader.text("#who"))
        reader.wait("silence", lambda: not reader.text(".toast"))
        # The page hears of the system's theme by an event, unless a test has left one in the storage.
        reader.wait("the system's theme", lambda: reader.page.evaluate(_FOLLOWS_SYSTEM))
        seen = {
            "tabs": len(reader.page.context.pages),
            "cookies": len(reader.page.context.cookies()),
        }
        return {**seen, **reader.page.evaluate(_STATE)}


@contextmanager
def seated(
    kept_browser: Lent, server: Server, prepare: Callable[[Page], Page] = lambda page: page
) -> Iterator[Seat]:
    """A seat at ``server``, whose page is closed at the end of the block."""
    seat = Seat(server, prepare)
    yield seat
    with kept_browser():
        seat.close()
