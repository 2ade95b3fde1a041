"""The tests' own reader reports what must never happen on the page."""

from __future__ import annotations

from playwright.sync_api import Browser

from serving import Server
from web.reader import Reader, light
from web.seat import Seat


QUARRELS: list[tuple[str, str]] = [
    ("console.error('it went wrong')", "it went wrong"),
    ("void setTimeout(() => { throw new Error('nobody caught this') })", "nobody caught this"),
    (
        "document.body.append(Object.assign(document.createElement('script'), {text: '1'}))",
        "inline",
    ),
    ("void fetch('/api/v1/nothing')", "404"),
    ("void (location = 'http://127.0.0.2:9/')", "asked for http://127.0.0.2:9/"),
]


def test_what_must_not_happen_is_noticed(passer_by: Reader) -> None:
    """Logged and thrown errors, policy violations, rejected calls and requests to other servers are reported."""
    reader = passer_by
    reader.open()
    assert reader.page_errors() == []
    for script, words in QUARRELS:
        assert not any(words in each for each in reader.page_errors())
        reader.ask(script)
        reader.wait(words, lambda words=words: any(words in each for each in reader.page_errors()))
    reader.wait("its end", lambda: reader.page.url.startswith("chrome-error:"))
    reader.ignore_page_errors(".")
    assert reader.page_errors() == []


def test_what_is_left_behind_is_reported(browser: Browser, served: Server) -> None:
    """Each change left on a page is reported, and the next reader gets another page."""
    seat = Seat(served, light)
    reader = seat.take(browser)
    reader.open()
    reader.ask("localStorage.setItem('left', 'here')")
    reader.ask("document.querySelector('header.bar').style.color = 'red'")
    reader.ask("void (document.cookie = 'left=here')")
    reader.ask(
        "document.body.append(Object.assign(document.createElement('p'), {textContent: '!'}))"
    )
    reader.ask("window.left = 'here'")  # this one is undone
    left = seat.leave(reader)
    assert [each.partition(":")[0] for each in left] == ["cookies", "storage", "body", "bar"]
    assert seat.leave(seat.take(browser)) == []
    seat.close()
